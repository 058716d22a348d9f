"""The weak box: what it promises, on a host that would allow better."""

# ruff: noqa: ASYNC220, ASYNC240

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_death import alive, fresh_mark, until_alive

from practicum.core import File, Limits, SandboxError
from practicum.domains import get_domain
from practicum.rollout import ScriptPolicy, play
from practicum.sandbox import Sandbox, open_boxes
from practicum.sandbox.weak import WeakBoxes
from practicum.sandbox.weak_agent import landlock_version

pytestmark = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
LIMITS = Limits(workspace_mb=4, memory_mb=256, output_bytes=10_000)


@pytest.fixture
async def boxes() -> AsyncIterator[WeakBoxes]:
    made = open_boxes("landlock")
    assert isinstance(made, WeakBoxes)
    yield made
    await made.close()


@pytest.fixture
async def box(boxes: WeakBoxes) -> AsyncIterator[Sandbox]:
    async with await boxes.open([File("d/f", b"x", 0o640)], LIMITS) as opened:
        yield opened


async def shell(box: Sandbox, code: str) -> str:
    return (await box.run(["bash", "-c", f"exec 2>&1; {code}"])).stdout.decode()


async def test_commands_and_files_are_as_in_any_box(box: Sandbox) -> None:
    result = await box.run(["sh", "-c", "cat d/f; pwd; echo err >&2; exit 3"], stdin=b"in")
    assert result.stdout == f"x{box.base}/workspace\n".encode()  # type: ignore[attr-defined]
    assert (result.stderr, result.exit_code, result.signal) == (b"err\n", 3, None)
    assert (await box.run(["sh", "-c", "kill -9 $$"])).signal == 9
    assert (await box.run(["cat"], stdin=b"in")).stdout == b"in"
    assert (await box.run(["nothing"])).exit_code == 127
    assert (await box.run(["true"], cwd="nowhere")).exit_code == 126
    assert (await box.run(["yes"], seconds=0.5)).output_cut
    assert (await box.python(["-c", "import pytest, os; print(os.getcwd())"])).exit_code == 0
    await box.write([File("new/g", b"y")])
    found = await box.read(["d", "new"])
    assert (found["d/f"].data, found["d/f"].mode, found["new/g"].data) == (b"x", 0o640, b"y")
    (child,) = await box.fork(1)
    await child.run(["rm", "d/f"])
    assert (await box.read(["d/f"]))["d/f"].data == b"x"


async def test_all_that_a_command_started_is_dead_when_it_ends(box: Sandbox) -> None:
    for seconds in (0.5, 20):
        mark = fresh_mark()
        tree = f"(setsid setsid sleep {mark} &); (trap '' TERM; sleep {mark}) & disown; "
        end = f"sleep {mark}" if seconds < 1 else "exit 0"
        result = await box.run(["bash", "-c", tree + end], seconds=seconds)
        assert result.timed_out == (seconds < 1)
        assert not alive(mark)


async def test_a_fork_bomb_dies_at_its_deadline(box: Sandbox) -> None:
    code = "import os,time\nfor _ in range(6):\n    os.fork()\ntime.sleep(60)"
    assert (await box.run(["python3", "-c", code], seconds=2)).timed_out
    assert await shell(box, "echo well") == "well\n"


async def test_files_of_the_host_are_neither_read_nor_written(box: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    secret.chmod(0o666)
    for place in (secret, tmp_path, "/tmp", "/root", "/home", "/etc/hostname", "/var", "/"):
        assert "hunter2" not in await shell(box, f"cat {place}; ls {place}/*; cat {place}/*")
        read = "ls" if Path(place).is_dir() else "head -c 1"
        assert "DONE" not in await shell(box, f"{read} {place} > /dev/null && echo DONE")
    for place in (secret, tmp_path / "new", "/tmp/new", "/usr/new", "/dev/shm/new"):
        assert "DONE" not in await shell(box, f"echo x > {place} && echo DONE")
    assert secret.read_text() == "hunter2"
    large = await box.run(["dd", "if=/dev/zero", "of=f", "bs=1M", "count=9"])
    assert large.exit_code != 0


async def test_no_network_and_no_socket_but_of_unix(box: Sandbox) -> None:
    code = """
import socket
for family in (2, 10, 16, 17, 40):
    for kind in (1, 2, 3):
        try:
            socket.socket(family, kind)
            print("OPEN", family, kind)
        except OSError:
            pass
socket.socketpair()
print("done")
"""
    assert (await box.run(["python3", "-c", code])).stdout == b"done\n"
    if landlock_version() >= 6:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("\0" + fresh_mark())
            server.listen()
            name = server.getsockname().decode()[1:]
            call = f"import socket; socket.socket(1).connect('\\0{name}'); print('OPEN')"
            assert (await box.run(["python3", "-c", call])).stdout == b""


async def test_processes_of_the_host_are_out_of_reach(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = subprocess.Popen(["sleep", "60"], env={"SECRET": "hunter2"})
    try:
        pids = f"{victim.pid} {box.pid} {os.getpid()}"  # type: ignore[attr-defined]
        seen = await shell(box, f"for p in {pids}; do cat /proc/$p/environ; ls /proc/$p/fd/; done")
        assert "hunter2" not in seen
        if landlock_version() >= 6 or os.geteuid() == 0:
            await shell(box, f"kill -9 {pids}; kill -9 -1")
        assert victim.poll() is None
        assert await shell(box, "echo well") == "well\n"
    finally:
        victim.kill()
        victim.wait()


async def test_no_privilege_is_held_or_gained(box: Sandbox) -> None:
    status = await shell(box, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (int(fields["CapEff"], 16), fields["NoNewPrivs"], fields["Seccomp"]) == (0, "1", "2")
    assert int(fields["Uid"].split()[0]) == box.uid  # type: ignore[attr-defined]
    assert "Operation not permitted" in await shell(box, "unshare -U true")


async def test_a_closed_box_leaves_no_folder_whatever_is_in_it(boxes: WeakBoxes) -> None:
    box = await boxes.open(limits=LIMITS)
    deep = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')"
    await box.run(["python3", "-c", deep])
    await box.run(["sh", "-c", "mkdir c; touch c/f; chmod 000 c"])
    base = box.base
    assert Path(base).exists()
    await box.close()
    assert not Path(base).exists()


OWNER = """
import asyncio, sys
from practicum.sandbox import open_boxes

async def main():
    box = await open_boxes("landlock").open()
    print(box.base, flush=True)
    guest = f"(setsid sleep {sys.argv[1]} &); sleep {sys.argv[1]}"
    await box.run(["bash", "-c", guest], seconds=99)

asyncio.run(main())
"""


async def test_a_killed_owner_leaves_no_process_and_the_next_removes_its_folder() -> None:
    mark = fresh_mark()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, mark], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    base = owner.stdout.readline().strip()
    await until_alive(mark)
    await asyncio.sleep(0.3)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    for _ in range(250):
        if not alive(mark):
            break
        await asyncio.sleep(0.02)
    assert not alive(mark)
    assert base.startswith(tempfile.gettempdir())
    await asyncio.sleep(0.2)
    await open_boxes("landlock").close()
    assert not Path(base).exists()


async def test_what_it_cannot_do_is_refused(boxes: WeakBoxes) -> None:
    with pytest.raises(SandboxError, match="no network"):
        await boxes.open(limits=Limits(network=("loopback",)))
    with pytest.raises(SandboxError, match="no other root"):
        await boxes.open(root="x")
    assert boxes.capabilities.workspace == "each file"


async def test_a_terminal_task_is_solved_in_it(boxes: WeakBoxes) -> None:
    domain = get_domain("sort_lines")
    task = domain.make(1, 1)
    episode = await play(task, domain, ScriptPolicy("gold", domain.solve(task)), boxes, key="k")
    assert episode.solved
