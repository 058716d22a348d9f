"""What `Sandbox` and `Boxes` promise, shown on each kind of local box."""

import asyncio
import errno
import hashlib
import os
import time

import pytest

from practicum.core import Artifact, File, Limits, SandboxError
from practicum.sandbox import Sandbox
from practicum.sandbox.local import LocalBoxes


async def test_streams_and_exit_code_are_kept_apart(box: Sandbox) -> None:
    result = await box.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert not result.timed_out
    assert result.signal is None
    assert 0 < result.seconds < 10


async def test_death_by_signal_is_no_exit_code(box: Sandbox) -> None:
    result = await box.run(["sh", "-c", "kill -TERM $$"])
    assert (result.exit_code, result.signal) == (None, 15)


async def test_stdin_is_what_was_given_and_otherwise_empty(box: Sandbox) -> None:
    data = bytes(range(256)) * 4000  # more than a pipe holds
    result = await box.run(["sha256sum"], stdin=data)
    assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert (await box.run(["cat"])).stdout == b""
    ignored = await box.run(["true"], stdin=data)
    assert ignored.exit_code == 0


async def test_workspace_and_tmp_persist_over_commands(box: Sandbox) -> None:
    await box.run(["sh", "-c", "echo a > kept; echo b > /tmp/kept"])
    assert (await box.run(["cat", "kept", "/tmp/kept"])).stdout == b"a\nb\n"


async def test_boxes_do_not_see_each_other(boxes: LocalBoxes) -> None:
    async with await boxes.open([File("a", b"1")]) as one, await boxes.open() as two:
        await one.run(["sh", "-c", "echo x > /tmp/x"])
        assert (await two.run(["ls", "/workspace", "/tmp"])).stdout == b"/tmp:\n\n/workspace:\n"


async def test_initial_files_have_their_content_mode_and_kind(boxes: LocalBoxes) -> None:
    files = [
        File("sub/run.sh", b"#!/bin/sh\necho ran\n", 0o755),
        File("secret", b"s", 0o400),
        File("empty", kind="dir", mode=0o700),
        File("link", b"sub/run.sh", kind="symlink"),
        File("späce name\n2", b"odd"),
    ]
    async with await boxes.open(files) as box:
        assert (await box.run(["./link"])).stdout == b"ran\n"
        found = await box.read([file.path for file in files])
    assert found["sub/run.sh"] == Artifact(b"#!/bin/sh\necho ran\n", 0o755)
    assert found["secret"] == Artifact(b"s", 0o400)
    assert found["empty"] == Artifact(b"", 0o700, "dir")
    assert found["link"].kind == "symlink"
    assert found["link"].data == b"sub/run.sh"
    assert found["späce name\n2"].data == b"odd"


async def test_read_takes_folders_whole_and_leaves_out_what_is_missing(box: Sandbox) -> None:
    await box.run(["sh", "-c", "mkdir -p d/e; echo 1 > d/e/f; echo 2 > d/g; echo 3 > other"])
    found = await box.read(["d", "missing"])
    assert sorted(found) == ["d", "d/e", "d/e/f", "d/g"]
    everything = await box.read(["."])
    assert {"other", "d/g"} <= set(everything)


async def test_read_cuts_a_large_file_and_says_so(box: Sandbox) -> None:
    await box.run(["sh", "-c", "head -c 5000 /dev/zero > big; printf abc > small"])
    found = await box.read(["big", "small"], max_bytes=1000)
    assert (len(found["big"].data), found["big"].truncated) == (1000, True)
    assert found["small"] == Artifact(b"abc")


async def test_read_sees_modes_that_forbid_reading(box: Sandbox) -> None:
    await box.run(["sh", "-c", "echo x > f; mkdir d; echo y > d/g; chmod 000 f d"])
    found = await box.read(["f", "d"])
    assert found["f"] == Artifact(b"x\n", 0o000)
    assert found["d"].mode == 0o000
    assert found["d/g"].data == b"y\n"


async def test_write_replaces_and_makes_parents(box: Sandbox) -> None:
    await box.run(["sh", "-c", "ln -s /etc/passwd f; mkdir d; echo old > d/x"])
    await box.write([File("f", b"new"), File("a/b/c", b"deep", 0o600), File("d", b"file now")])
    found = await box.read(["f", "a/b/c", "d"])
    assert found["f"] == Artifact(b"new")
    assert found["a/b/c"] == Artifact(b"deep", 0o600)
    assert found["d"] == Artifact(b"file now")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "nul\0"])
async def test_paths_out_of_the_workspace_are_refused(
    boxes: LocalBoxes, box: Sandbox, path: str
) -> None:
    with pytest.raises(SandboxError, match="inside the workspace"):
        await box.write([File(path, b"x")])
    with pytest.raises(SandboxError, match="inside the workspace"):
        await box.read([path])
    with pytest.raises(SandboxError, match="inside the workspace"):
        await boxes.open([File(path, b"x")])


async def test_commands_that_cannot_run_are_results(box: Sandbox) -> None:
    assert (await box.run(["no-such-program"])).exit_code == 127
    assert (await box.run(["true"], cwd="nowhere")).exit_code == 126
    assert (await box.run(["true", "a\0b"])).exit_code == 126
    assert (await box.run(["true", "\ud800"])).exit_code == 126
    assert (await box.run(["true", "x" * 500_000])).exit_code == 126


async def test_environment_is_ours_alone(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_SECRET", "hunter2")
    result = await box.run(["env"], env={"GIVEN": "yes"})
    lines = result.stdout.decode().splitlines()
    assert "GIVEN=yes" in lines
    assert "HOME=/workspace" in lines
    assert "PYTHONHASHSEED=0" in lines
    assert not any("hunter2" in line for line in lines)


async def test_pytest_is_there_for_the_guest(boxes: LocalBoxes) -> None:
    files = [File("test_a.py", b"def test_ok(): pass\ndef test_bad(): assert 1 == 2\n")]
    async with await boxes.open(files) as box:
        argv = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_a.py"]
        result = await box.run(argv, seconds=60)
    assert result.exit_code == 1
    assert b"1 failed, 1 passed" in result.stdout


async def test_large_output_is_cut_and_the_command_still_ends(box: Sandbox) -> None:
    result = await box.run(["sh", "-c", "head -c 3000000 /dev/zero; echo done >&2"])
    assert result.exit_code == 0
    assert len(result.stdout) == 32 * 1024
    assert result.output_cut
    assert result.stderr == b"done\n"


async def test_no_more_commands_run_at_once_than_allowed_and_waiting_is_free(
    kind: type[LocalBoxes],
) -> None:
    boxes = kind(max_running=1)
    one, two = await boxes.open(), await boxes.open()
    slow, quick = await asyncio.gather(
        one.run(["sleep", "0.6"], seconds=5), two.run(["true"], seconds=0.5)
    )
    assert slow.exit_code == 0
    assert not quick.timed_out  # it waited longer than its own limit, in our queue
    await boxes.close()


async def test_delay_slows_commands_without_counting(kind: type[LocalBoxes]) -> None:
    waits = []

    async def delay() -> None:
        waits.append(0.2)
        await asyncio.sleep(0.2)

    boxes = kind(delay=delay)
    begin = time.monotonic()
    async with await boxes.open() as box:
        result = await box.run(["true"], seconds=0.15)
    assert not result.timed_out
    assert len(waits) == 2
    assert time.monotonic() - begin >= 0.4


async def test_closed_boxes_refuse_and_close_twice(boxes: LocalBoxes) -> None:
    box = await boxes.open()
    await box.close()
    await box.close()
    with pytest.raises(SandboxError, match="closed"):
        await box.run(["true"])


async def test_files_that_do_not_fit_are_our_error(boxes: LocalBoxes) -> None:
    with pytest.raises(SandboxError, match="workspace_mb"):
        await boxes.open([File("big", bytes(3 << 20))], Limits(workspace_mb=1))


async def test_a_host_without_descriptors_is_our_failure(
    boxes: LocalBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an exit status of the guest: a grader would score it."""
    async with await boxes.open() as box:

        def full() -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "pipe", full)
        with pytest.raises(SandboxError, match="Too many open files"):
            await box.run(["true"])
        monkeypatch.undo()
        assert (await box.run(["echo", "on"])).stdout == b"on\n"
