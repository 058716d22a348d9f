"""The contract of a box, shown on the container engines that this host has.

What a guest runs is no process of the host in gVisor, so these tests look for it in the box.
"""

# ruff: noqa: ASYNC220, ASYNC240, F401

import asyncio
import functools
import itertools
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from test_contract import (
    test_commands_that_cannot_run_are_results,
    test_death_by_signal_is_no_exit_code,
    test_environment_is_ours_alone,
    test_files_that_do_not_fit_are_our_error,
    test_initial_files_have_their_content_mode_and_kind,
    test_large_output_is_cut_and_the_command_still_ends,
    test_read_sees_modes_that_forbid_reading,
    test_stdin_is_what_was_given_and_otherwise_empty,
    test_streams_and_exit_code_are_kept_apart,
    test_write_replaces_and_makes_parents,
)
from test_death import (
    alive,
    children,
    fresh_mark,
    test_deadline_holds_against,
    test_deadline_kills_and_keeps_the_output_so_far,
)
from test_snapshots import STATE, look
from test_snapshots import test_what_does_not_fit_is_our_error as test_a_snapshot_has_to_fit

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import Root, Sandbox
from practicum.sandbox.container import ContainerBox, ContainerBoxes, Pace

ADAPTERS = {
    "podman": "practicum.sandbox.podman:PodmanBoxes",
    "docker": "practicum.sandbox.podman:DockerBoxes",
    "gvisor": "practicum.sandbox.gvisor:GvisorBoxes",
}
LIMITS = Limits(workspace_mb=8, output_bytes=32 * 1024)


@functools.cache
def refusal(name: str) -> str:
    """Why this host makes no such boxes; empty when it does."""
    try:
        asyncio.run(opened_and_closed(pkgutil.resolve_name(ADAPTERS[name])))
    except SandboxError as error:
        return str(error)
    return ""


async def opened_and_closed(kind: type[ContainerBoxes]) -> None:
    boxes = kind()
    try:
        async with await boxes.open():
            pass
    finally:
        await boxes.close()


@pytest.fixture(params=list(ADAPTERS))
def kind(request: pytest.FixtureRequest) -> type[ContainerBoxes]:
    if refusal(request.param):
        pytest.skip(refusal(request.param))
    found: type[ContainerBoxes] = pkgutil.resolve_name(ADAPTERS[request.param])
    return found


async def inside(box: Sandbox) -> bytes:
    """The command lines of all processes in a box."""
    return (await box.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"])).stdout


def listed(boxes: ContainerBoxes) -> str:
    """The containers that an engine knows of, those that have ended too."""
    engine: list[str] = getattr(boxes, "engine", [])
    if not engine:
        return ""
    return subprocess.run(
        [*engine, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True
    ).stdout


async def until_gone(boxes: ContainerBoxes, name: str) -> None:
    """Wait until no process of an engine names a box, nor the engine itself."""
    for _ in range(250):
        if not alive(name) and name not in listed(boxes):
            break
        await asyncio.sleep(0.02)
    assert not alive(name)
    assert name not in listed(boxes)


async def test_what_is_written_persists_and_boxes_do_not_share_it(boxes: ContainerBoxes) -> None:
    async with await boxes.open([File("a", b"1")]) as one, await boxes.open() as two:
        await one.run(["sh", "-c", "echo x > /tmp/x; echo y > /dev/shm/y; echo z > z"])
        assert (await one.run(["cat", "a", "z", "/tmp/x", "/dev/shm/y"])).stdout == b"1z\nx\ny\n"
        found = await two.run(["find", "/workspace", "/tmp", "/dev/shm"])
        assert found.stdout == b"/workspace\n/tmp\n/dev/shm\n"


async def test_any_bytes_go_in_and_out(box: Sandbox) -> None:
    names = ["-rf", "a\nb", "*", "späce 'q' \"", "\udcff\udcfe", "$(touch x)", "d=e/=f"]
    await box.write([File(name, os.fsencode(name)) for name in names])
    found = await box.read(["."])
    assert {name: found[name].data for name in names} == {n: os.fsencode(n) for n in names}
    assert "x" not in found
    result = await box.run(["printf", "%s|", "", *names], env={"ODD": "\udcff =\n"})
    assert result.stdout == b"|".join([b"", *map(os.fsencode, names), b""])
    assert (await box.run(["a=b"])).exit_code == 127


async def test_all_that_a_command_left_is_dead(box: Sandbox) -> None:
    mark = fresh_mark()
    left = await box.run(["bash", "-c", f"(setsid sleep {mark} &) & disown; echo left"])
    assert (left.exit_code, left.stdout) == (0, b"left\n")
    assert mark.encode() not in await inside(box)
    late = await box.run(["bash", "-c", f"(setsid sleep {mark} &); sleep {mark}"], seconds=0.5)
    assert late.timed_out
    task = asyncio.create_task(box.run(["sleep", mark], seconds=60))
    await asyncio.sleep(0.7)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mark.encode() not in await inside(box)
    assert not alive(mark)


GUEST = """
import ctypes, os, socket
status = dict(line.split(":\t") for line in open("/proc/self/status") if ":\t" in line)
print(os.getuid(), os.getgid(), int(status["CapEff"], 16), int(status["CapPrm"], 16))
libc = ctypes.CDLL(None, use_errno=True)
def worked(what, *args):
    try:
        if what(*args) != -1:
            print("worked:", what, args)
    except OSError:
        pass
for place in ("/", "/etc", "/usr", "/dev", "/proc/sys/kernel", "/opt/python", "/run", "/var"):
    worked(open, f"{place}/intruder", "w")
worked(open, "/proc/sys/kernel/core_pattern", "r+")
worked(os.kill, 1, 9)
def disk():
    os.mknod("/tmp/disk", 0o600 | 0o060000, os.makedev(8, 0))
    open("/tmp/disk", "rb").read(1)
worked(disk)
worked(libc.ptrace, 16, 1, 0, 0)
worked(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None)
worked(socket.socket, 40, socket.SOCK_STREAM)  # vsock
worked(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
"""
NAMESPACE = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"


async def test_a_guest_is_nobody_and_can_do_nothing_about_it(box: Sandbox) -> None:
    result = await box.run(["python3", "-c", GUEST])
    assert (result.stdout, result.stderr) == (b"1000 1000 0 0\n", b"")
    if "Gvisor" not in type(box).__name__:  # whose namespaces are nothing to the host
        assert (await box.run(["python3", "-c", NAMESPACE])).stdout == b"-1\n"


LOOK_OUT = """
import os, socket, sys
port, abstract, path, secret = sys.argv[1:]
for kind, place in ((2, ("127.0.0.1", int(port))), (1, "\\0" + abstract), (1, path)):
    with socket.socket(kind) as s:
        print(s.connect_ex(place) == 0)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    print(s.connect_ex(("192.0.2.1", 9)) == 0)  # sends nothing
print(any(map(os.path.exists, (secret, path, "/etc/shadow", "/root/.bashrc", "/home", "/work"))))
listener = socket.create_server(("127.0.0.1", 0))
with socket.socket() as s:
    print(s.connect_ex(listener.getsockname()))
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[list[str]]:
    """Servers and a file of this host, as arguments for `LOOK_OUT`."""
    secret, abstract = tmp_path / "secret", f"practicum-{os.getpid()}"
    secret.write_text("hunter2")
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.socket(socket.AF_UNIX)) as hidden,
        closing(socket.socket(socket.AF_UNIX)) as plain,
    ):
        hidden.bind(f"\0{abstract}")
        plain.bind(f"{tmp_path}/s")
        hidden.listen()
        plain.listen()
        yield [str(server.getsockname()[1]), abstract, f"{tmp_path}/s", str(secret)]


async def test_nothing_of_the_host_is_reached(boxes: ContainerBoxes, host: list[str]) -> None:
    async with await boxes.open(limits=LIMITS) as box:
        result = await box.run(["python3", "-c", LOOK_OUT, *host])
        assert result.stdout.split() == [b"False"] * 5 + [b"0"], result.stderr
        assert str(os.getpid()).encode() not in (await box.run(["sh", "-c", "echo /proc/*"])).stdout


FILL = """
for place in /workspace /tmp /dev/shm; do
    for n in 1 2 3; do head -c 4M /dev/zero > $place/$n && echo $n; done
    rm $place/*
done 2> /dev/null
"""
MULTIPLY = """
import os, time
made = 0
try:
    while made < 100 and os.fork():
        made += 1
    time.sleep(60)
except OSError:
    print(made)
"""


async def test_what_a_box_may_take_is_limited(boxes: ContainerBoxes) -> None:
    async with await boxes.open(limits=Limits(memory_mb=64, processes=16, workspace_mb=8)) as box:
        assert (await box.run(["bash", "-c", FILL])).stdout.split() == [b"1", b"2"] * 3
        crowd = await box.run(["python3", "-c", MULTIPLY])
        assert 8 < int(crowd.stdout) < 40
        assert (await box.run(["echo", "well"])).stdout == b"well\n"
        hungry = await box.run(["python3", "-c", "bytearray(300 << 20)"])
        if boxes.capabilities.memory == "cgroup":
            assert (hungry.out_of_memory, hungry.signal) == (True, 9)
            after = await box.run(["echo", "well"])  # in gVisor the box has died of it
            assert after.out_of_memory or after.stdout == b"well\n"
        assert hungry.exit_code != 0


def mounted() -> set[str]:
    """Where something is mounted, but for podman's store itself, which comes and goes with its
    commands; what a box leaves would lie below it."""
    points = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    return points - {"/var/lib/containers/storage/overlay"}


async def test_a_closed_box_leaves_nothing(boxes: ContainerBoxes) -> None:
    mounts = mounted()
    mark = fresh_mark()
    box = await boxes.open([File("f", b"x")])
    assert isinstance(box, ContainerBox)
    assert alive(box.name)
    task = asyncio.create_task(box.run(["bash", "-c", f"sleep {mark} & wait"], seconds=60))
    await asyncio.sleep(0.7)
    await box.close()
    await box.close()
    with pytest.raises(SandboxError, match="closed"):
        await task
    with pytest.raises(SandboxError, match="closed"):
        await box.run(["true"])
    assert not alive(mark)
    await until_gone(boxes, box.name)
    assert mounted() == mounts
    folder = getattr(boxes, "folder", None)
    assert folder is None or box.name not in os.listdir(folder)
    await boxes.close()
    assert folder is None or not folder.exists()


async def test_no_descriptor_and_no_zombie_is_left(kind: type[ContainerBoxes]) -> None:
    async def once() -> None:
        boxes = kind()
        async with await boxes.open() as box:
            await box.run(["sleep", "9"], seconds=0.05)
            await box.read(["."])
        await boxes.close()

    await once()
    before = children(), len(os.listdir("/proc/self/fd"))
    await once()
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


VICTIM = """
import asyncio, pkgutil, sys

async def main():
    boxes = pkgutil.resolve_name(sys.argv[2])()
    box = await boxes.open()
    print(box.name, box.pid, getattr(boxes, "folder", "-"), flush=True)
    await box.run(["bash", "-c", f"(setsid sleep {sys.argv[1]} &); sleep 600"], seconds=600)

asyncio.run(main())
"""


@pytest.mark.parametrize("who", ["owner", "engine"])
async def test_a_box_dies_with_its_owner_and_with_its_engine(
    kind: type[ContainerBoxes], who: str
) -> None:
    mark, mounts = fresh_mark(), mounted()
    argv = [sys.executable, "-c", VICTIM, mark, f"{kind.__module__}:{kind.__name__}"]
    victim = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert victim.stdout is not None
    name, pid, folder = victim.stdout.readline().split()
    await asyncio.sleep(0.7)
    assert alive(name)
    os.kill(victim.pid if who == "owner" else int(pid), signal.SIGKILL)
    victim.wait(30)
    victim.stdout.close()
    after = kind()  # which removes the folder of who was killed
    await until_gone(after, name)
    assert not alive(mark)
    assert not Path(folder).exists()
    assert mounted() == mounts
    await after.close()


async def test_a_snapshot_can_be_restored_and_forked(boxes: ContainerBoxes) -> None:
    async with await boxes.open(limits=LIMITS) as parent:
        await parent.run(["bash", "-c", STATE])
        before = await look(parent)
        taken = await (await parent.snapshot()).export()
    async with await boxes.restore(taken) as again:
        assert await look(again) == before
        (child,) = await again.fork(1)
        await child.run(["sh", "-c", "echo other > a"])
        assert (await again.read(["a"]))["a"].data == b"one\n"
        assert (await child.read(["a", "hard"]))["a"].data == b"other\n"


async def test_a_box_can_have_another_root(kind: type[ContainerBoxes], tmp_path: Path) -> None:
    for place in ("etc/own", "opt/tool/version", "var/lib/data/f", "srv/f"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(f"{place}\n")
    for name, target in (("usr", "host"), ("bin", "usr/bin"), ("lib", "usr/lib")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "lib64").symlink_to("usr/lib64")
    boxes = kind(roots={"small": Root(str(tmp_path), {"/host": "/usr"})})
    async with await boxes.open([File("f", b"x")], LIMITS, root="small") as box:
        seen = await box.run(["cat", "/etc/own", "/opt/tool/version", "/var/lib/data/f", "f"])
        assert seen.stdout == b"etc/own\nopt/tool/version\nvar/lib/data/f\nx"
        assert (await box.run(["find", "/etc/alternatives", "/etc/ssl"])).stdout == b""
        places = "/ /etc /opt/tool /srv /host /usr/bin /var/lib/data"
        written = f"for p in {places}; do touch $p/intruder && echo $p; done"
        assert (await box.run(["sh", "-c", written])).stdout == b""
    with pytest.raises(SandboxError, match="known: small"):
        await boxes.open(root="unknown")
    await boxes.close()


async def test_hosts_are_out_of_reach_and_a_task_that_needs_one_is_refused(
    boxes: ContainerBoxes,
) -> None:
    with pytest.raises(SandboxError, match="use native boxes"):
        await boxes.open(limits=Limits(network=("pypi.org:443",)))


async def test_creations_keep_their_pace() -> None:
    pace, under_way, most, begun = Pace(per_second=50, at_once=3), 0, 0, []

    async def create() -> None:
        nonlocal under_way, most
        async with pace.place():
            begun.append(time.monotonic())
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.1)
            under_way -= 1

    await asyncio.gather(*(create() for _ in range(9)))
    assert most == 3
    assert min(b - a for a, b in itertools.pairwise(begun)) > 0.015
