"""Run by the boxes' own Python, as the spawner of boxes in which Python has already started.

    python3 -c THIS CONTROL LIBRARY OWNER [MODULE...]

It imports the modules, then lets `box.c`, loaded as a library, make boxes. There, `spawn` returns
in each process that is to run Python code; the rest of this file is what `python3 ARGS` would do,
but for two things: variables that Python reads when it starts (PYTHONPATH and the like) come too
late, and what is left at the end is not taken apart object by object, which would copy the memory
that forks share. A fork has its parent's memory, so its random numbers are made new; there is
nothing else in it than modules, for it was started with a clean environment and has never seen a
file of a task.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import sys
import threading
import types

_ADDED = os.environ.get("PYTHONPATH", "").split(os.pathsep)


def become(words: list[str]) -> None:
    """Run what the words after `python3` name, as the main program."""
    reseed()
    del sys.path[0]  # the place of a script, which was not known
    sys.excepthook = show
    isolated = words[0] == "-I"
    if isolated:
        sys.path[:] = [place for place in sys.path if place not in _ADDED]
        words = words[1:]
    first, rest = words[0], words[1:]
    if first == "-m":
        sys.argv = rest
        if not isolated:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    main = types.ModuleType("__main__")
    if first == "-c":
        code, name, place = rest[0].encode("utf-8", "surrogateescape"), "<string>", ""
        sys.argv = ["-c", *rest[1:]]
    else:
        sys.argv = words
        if os.path.isdir(first):
            sys.path.insert(0, first)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
            return
        place, name = os.path.dirname(os.path.realpath(first)), os.path.join(os.getcwd(), first)
        main.__file__ = name
        try:
            with open(first, "rb") as file:
                code = file.read()
        except OSError as error:
            why = f"[Errno {error.errno}] {error.strerror}"
            print(f"python3: can't open file {name!r}: {why}", file=sys.stderr)
            sys.exit(2)
    if not isolated:
        sys.path.insert(0, place)
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), main.__dict__)


def reseed() -> None:
    """Give this process random numbers of its own, in the modules that have been imported."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]


def show(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Report an error as an interpreter does that ran nothing else."""
    while trace and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def text(pointer: "ctypes._Pointer[ctypes.c_char_p]") -> list[str]:
    """The words of an array that NULL ends."""
    found: list[str] = []
    while (word := pointer[len(found)]) is not None:
        found.append(os.fsdecode(word))
    return found


def serve(control: int, library: int, modules: list[str]) -> list[str]:
    """Make boxes; returns in a process that is to run something, with its words."""
    for name in modules:
        with contextlib.suppress(Exception):  # who needs it will be told
            importlib.import_module(name)
    gc.freeze()
    box = ctypes.PyDLL(f"/proc/self/fd/{library}")
    os.set_inheritable(control, False)
    os.close(library)
    box.spawn.restype = ctypes.POINTER(ctypes.c_char_p)
    found = box.spawn(control)
    if not found:
        os._exit(0)
    words = text(found)
    size = ctypes.sizeof(ctypes.c_char_p)
    after = ctypes.cast(ctypes.addressof(found.contents) + (len(words) + 1) * size, type(found))
    os.environ.clear()
    for word in text(after):
        name, _, value = word.partition("=")
        os.environ[name] = value
    return words


def status(words: list[str]) -> int:
    """Run what the words say, as far as to the exit status."""
    try:
        become(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        raise  # ends this process by the signal, as it should
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def end(code: int) -> None:
    """End as an interpreter does, without taking everything apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # None, or closed
            try:
                stream.flush()
            except OSError:
                code = code or 120
    os._exit(code)


if __name__ == "__main__":
    end(status(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:])[1:]))
