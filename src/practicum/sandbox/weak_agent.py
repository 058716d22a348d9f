"""The agent of a weak box, on the host: takes commands as `box.c` does, but makes no namespaces.

    python3 weak_agent.py SOCKET UID JSON

Each command is shut in by Landlock (files, TCP, signals and abstract sockets outside), a filter of
system calls, and resource limits. The agent takes in orphans, so it can kill all that a command
started. It is not shut in itself: what the guest must not reach is protected by the guest's rules.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import Any

_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 36, 38, 22
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # landlock_*, on every architecture
_ON_FILES = 0b1100_0000_0000_0111  # execute, write, read, truncate, ioctl: the rest is of folders
_READ = 0b1101  # execute, read a file, list a folder
_LIBC = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """The kernel's, 0 where there is none."""
    return max(_LIBC.syscall(_CREATE, None, ctypes.c_size_t(0), 1), 0)


def shut_in(readable: list[str], writable: list[str]) -> None:
    """Let this process reach only these files from now on, no TCP, and nobody outside."""
    version = landlock_version()
    everything = (1 << (12 + min(version, 3))) - 1 if version < 5 else (1 << 16) - 1
    fields = [everything, 3, 3][: 1 + (version >= 4) + (version >= 6)]
    ruleset = _LIBC.syscall(
        _CREATE, struct.pack(f"={len(fields)}Q", *fields), ctypes.c_size_t(8 * len(fields)), 0
    )
    _check(ruleset)
    for paths, access in ((readable, _READ), (writable, everything)):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
                allowed = access & everything
                if not os.path.isdir(path):
                    allowed &= _ON_FILES
                _check(_LIBC.syscall(_ADD, ruleset, 1, struct.pack("=Qi", allowed, fd), 0))
                os.close(fd)
    _check(_LIBC.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)


def become(said: bytes, streams: list[int], uid: int, rules: dict[str, Any]) -> None:
    """Run the command of a request in place of this process."""
    folder, count, *rest = said[2:].split(b"\0")[:-1]
    words, variables = rest[: int(count)], rest[int(count) :]
    os.setsid()
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    for name, value in rules["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0o022)
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    shut_in(rules["readable"], rules["writable"])
    code = bytes.fromhex(rules["filter"])
    if code:
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
        _check(_LIBC.prctl(_PR_SET_SECCOMP, 2, program, 0, 0))
    try:
        os.chdir(folder)
    except OSError as error:
        os.write(2, f"cannot enter {os.fsdecode(folder)}: {error.strerror}\n".encode())
        os._exit(126)
    environment = dict(word.split(b"=", 1) for word in variables)
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        os.write(2, f"cannot run {os.fsdecode(words[0])}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def kill_children() -> None:
    """Kill those we have now; what they leave comes to us and is killed next."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        for pid in file.read().split():
            os.kill(int(pid), signal.SIGKILL)


def serve(box: socket.socket, uid: int, rules: dict[str, Any]) -> None:
    """Take commands until the host is gone."""
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    running, code = 0, 0
    socket.send_fds(box, [b"R0"], [os.pidfd_open(os.getpid())])
    sources: list[Any] = [box, woken]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if woken in ready:
            os.read(woken, 4096)
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    if running:
                        running = 0
                        box.send(b"S%d" % code)
                    break
                if not pid:
                    if running < 0:
                        kill_children()
                    break
                if pid == running:
                    code, running = os.waitstatus_to_exitcode(status), -1
                    kill_children()
        if box in ready:
            said, fds, _, _ = socket.recv_fds(box, 1 << 20, 3)
            if not said:
                return
            if said[:1] == b"K":
                kill_children()
            elif said[:1] == b"X":
                running = os.fork()
                if not running:
                    try:
                        become(said, fds, uid, rules)
                    finally:
                        os._exit(125)
            for fd in fds:
                os.close(fd)


def end() -> None:
    """Leave nothing alive."""
    with contextlib.suppress(ChildProcessError):
        while True:
            kill_children()
            os.waitpid(-1, 0)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    try:
        serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), json.loads(sys.argv[3]))
    finally:
        end()
