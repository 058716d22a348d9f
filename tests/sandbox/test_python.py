"""`box.python` does what `python3` does, whether it starts one or forks one that has started."""

import asyncio

import pytest

from practicum.core import File, Limits
from practicum.sandbox import NativeBoxes, Result, Sandbox
from practicum.sandbox.local import LocalBoxes

FILES = [
    File("show.py", b"import sys\nprint(__name__, __file__, sys.argv, sys.path)\nsys.exit(7)\n"),
    File("wrong.py", b"import json\ndef f():\n    json.loads('{')\nf()\n"),
    File("broken.py", b"def f(:\n"),
    File("folder/__main__.py", b"import near, sys; print(near.x, sys.argv)"),
    File("folder/near.py", b"x = 'near'"),
    File("test_it.py", b"def test_it(): assert [1] == 1\n"),
]
SHOW = "import sys; print(__name__, sys.argv, sys.path, sys.stdin.read())"
COMMANDS = {
    "code": ["-c", SHOW, "a", "-b"],
    "isolated": ["-I", "-c", SHOW],
    "isolated script": ["-I", "show.py"],
    "isolated module": ["-I", "-m", "json.tool", "--help"],
    "odd bytes": ["-c", "import sys; print(ascii(sys.argv))", "\udcff", "ä\n"],
    "a script": ["show.py", "x"],
    "a script elsewhere": ["folder/near.py"],
    "a folder": ["folder", "x"],
    "no such script": ["nothing.py"],
    "no such module": ["-m", "nothing"],
    "an error": ["wrong.py"],
    "an error in code": ["-c", "def f(): 1/0\nf()"],
    "a chain of errors": ["-c", "try: 1/0\nexcept ValueError: pass\nfinally: x"],
    "a syntax error": ["broken.py"],
    "a syntax error in code": ["-c", "("],
    "text as status": ["-c", "import sys; sys.exit('said')"],
    "a large status": ["-c", "import sys; sys.exit(257)"],
    "no status": ["-c", "raise SystemExit"],
    "os._exit": ["-c", "import os; print('lost', end=''); os._exit(3)"],
    "a signal": ["-c", "import os; os.kill(os.getpid(), 15)"],
    "an interrupt": ["-c", "raise KeyboardInterrupt"],
    "at exit": ["-c", "import atexit; atexit.register(print, 'last'); print('first')"],
    "a thread": [
        "-c",
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()",
    ],
    "a child": ["-c", "import os; print('x', flush=True); os.fork() and os.wait(); print('both')"],
    "a pool": [
        "-c",
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p:\n"
        "    print(p.map(abs, [-1, 2]))",
    ],
    "a subprocess": ["-c", "import subprocess; print(subprocess.run(['id', '-u']).returncode)"],
    "closed output": ["-c", "import sys; sys.stdout.close()"],
    "pytest": ["-m", "pytest", "-q", "-p", "no:cacheprovider"],
    "an option": ["-V"],
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_fork_does_what_a_start_does(boxes: LocalBoxes, name: str) -> None:
    async with await boxes.open(FILES, preload=["pytest", "json", "nothing"]) as box:
        call = {"stdin": b"given", "env": {"NAME": "väl=ue"}}
        plain = await box.run(["python3", *COMMANDS[name]], **call)  # type: ignore[arg-type]
        forked = await box.python(COMMANDS[name], **call)  # type: ignore[arg-type]
    assert facts(forked) == facts(plain)


def facts(result: Result) -> tuple[object, ...]:
    """What must be equal: all but times, and what pytest and the kernel say of them."""
    out = b"".join(line for line in result.stdout.splitlines() if b" in 0." not in line)
    return (out, result.stderr, result.exit_code, result.signal)


async def test_what_a_process_is_and_holds_is_the_same(boxes: LocalBoxes) -> None:
    code = """
import os, resource, signal, sys
keys = "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"
keys += "Seccomp", "SigBlk", "SigIgn", "SigCgt", "NSpid", "Umask"
with open("/proc/self/status") as file:
    lines = dict(line.rstrip().split(":", 1) for line in file)
print([lines[k] for k in keys if k != "NSpid"], os.getcwd(), sorted(os.environ.items()))
print([resource.getrlimit(n) for n in range(16)], sorted(os.listdir("/proc/self/fd")))
print(os.getsid(0) == os.getpid(), sys.flags, sys.executable)
print(open("/proc/self/oom_score_adj").read())
"""
    async with await boxes.open(preload=["pytest"]) as box:
        plain = await box.run(["python3", "-c", code], env={"A": "b"})
        forked = await box.python(["-c", code], env={"A": "b"})
    assert forked.stdout.decode() == plain.stdout.decode()
    assert forked.stderr == b""


async def test_random_numbers_are_made_new_and_hashes_stay(boxes: LocalBoxes) -> None:
    code = "import random, tempfile; print(random.random(), tempfile.mktemp(), hash('x'))"
    seen = []
    for _ in range(2):
        async with await boxes.open(preload=["random", "tempfile"]) as box:
            seen += [(await box.python(["-c", code])).stdout.split() for _ in range(2)]
    assert len({number for number, _, _ in seen}) == 4
    assert len({name for _, name, _ in seen}) == 4
    assert len({value for _, _, value in seen}) == 1


async def test_nothing_of_one_run_is_seen_by_the_next(boxes: LocalBoxes) -> None:
    spoil = "import json, builtins, os; json.dumps = builtins.len = print; os.environ['X'] = 'y'"
    look = "import json, os; print(json.dumps([1]), len([1]), os.environ.get('X'))"
    async with await boxes.open(preload=["json"]) as box:
        await box.python(["-c", spoil])
        assert (await box.python(["-c", look])).stdout == b"[1] 1 None\n"


async def test_a_file_cannot_take_the_place_of_what_was_imported_before(boxes: LocalBoxes) -> None:
    """The one difference that a candidate could see; graders run isolated, without such files."""
    files = [File("json.py", b"print('shadow')"), File("csv.py", b"print('shadow')")]
    async with await boxes.open(files, preload=["json"]) as box:
        forked = isinstance(boxes, NativeBoxes)
        shadow = b"" if forked else b"shadow\n"
        assert (await box.python(["-c", "import json"])).stdout == shadow
        assert (await box.python(["-c", "import csv"])).stdout == b"shadow\n"
        assert (await box.python(["-I", "-c", "import json, csv"])).stdout == b""


async def test_a_deadline_and_the_end_of_a_run_kill_all_of_it(boxes: LocalBoxes) -> None:
    async with await boxes.open(preload=["json"]) as box:
        late = await box.python(["-c", "import os\nos.fork()\nwhile True: pass"], seconds=0.5)
        assert late.timed_out
        left = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)\nprint(1)"
        assert (await box.python(["-c", left])).stdout == b"1\n"
        assert len((await box.run(["sh", "-c", "ls -d /proc/[0-9]*"])).stdout.split()) <= 3


@pytest.mark.usefixtures("native_built")
async def test_forks_are_really_forks_and_what_they_know_is_nothing_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRACTICUM_SECRET", "hunter2")
    look = (
        "import sys; print('pytest' in sys.modules)\n"
        "print('hun' + 'ter2' in open('/proc/self/environ').read())\n"
        "words = open('/proc/1/cmdline').read().split('\\0')\n"
        "print(words[0])"
    )
    boxes = NativeBoxes()
    async with await boxes.open(preload=["pytest"]) as box:
        assert (await box.python(["-c", look])).stdout.split() == [
            b"True",
            b"False",
            b"/usr/bin/python3",
        ]
        children: list[Sandbox] = await box.fork(2)
        for child in children:
            assert (await child.python(["-c", look])).stdout.startswith(b"True")
    await boxes.close()


@pytest.mark.usefixtures("native_built")
async def test_a_killed_interpreter_is_replaced() -> None:
    boxes = NativeBoxes()
    async with await boxes.open(preload=["json"], limits=Limits(network=("loopback",))) as box:
        for spawner in boxes._spawners.values():
            spawner._process.kill()
            await asyncio.to_thread(spawner._process.wait)
        assert (await box.python(["-c", "print(1)"])).stdout == b"1\n"
        async with await boxes.open(preload=["json"]) as other:
            assert (await other.python(["-c", "print(2)"])).stdout == b"2\n"
    await boxes.close()
