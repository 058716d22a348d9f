"""Other root file systems than the host's, and folders mounted beside."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import NativeBoxes, Root
from practicum.sandbox.local import SHARED_FROM, LocalBoxes

LIMITS = Limits(workspace_mb=8)
PLACES = ("/", "/etc", "/opt", "/opt/tool", "/srv", "/usr/bin", "/var/lib", "/home/me", "/host")
PROGRAMS = ("sh", "ls", "cat", "tar", "touch", "id", "readlink")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root: a few of the host's programs with their libraries, and files of its own."""
    made = tmp_path_factory.mktemp("root")
    path = made
    while path != Path(tempfile.gettempdir()):  # guests must be able to enter
        path.chmod(0o755)
        path = path.parent
    for name in ("etc", "opt/tool", "usr/bin", "srv", "var/lib/data", "var/log", "home/me"):
        (made / name).mkdir(parents=True)
    for name in PROGRAMS:
        source = shutil.which(name, path="/usr/bin:/bin")
        assert source
        shutil.copy(source, made / "usr/bin" / name)
    for name in ("lib", "lib64"):
        if Path("/usr", name).exists():
            (made / "usr" / name).symlink_to(f"/host/{name}")
            (made / name).symlink_to(f"usr/{name}")
    (made / "bin").symlink_to("usr/bin")
    (made / "etc/passwd").write_text("nobody:x:65534:65534::/:/bin/false\n")
    (made / "etc/own").write_text("own\n")
    (made / "opt/tool/version").write_text("7\n")
    (made / "var/lib/data/f").write_text("data\n")
    (made / "host").mkdir()
    return made


@pytest.fixture
async def rooted(kind: type[LocalBoxes], folder: Path) -> AsyncIterator[LocalBoxes]:
    boxes = kind(
        roots={
            "small": Root(str(folder), {"/host": "/usr"}),
            "more": Root(
                mounts={"/opt/data/deep": str(folder / "opt/tool"), "/one": str(folder / "etc/own")}
            ),
            "gone": Root(str(folder / "nothing")),
            "wrong": Root(mounts={"/tmp/x": str(folder)}),
            "relative": Root(mounts={"opt/x": str(folder)}),
        }
    )
    yield boxes
    await boxes.close()


async def test_a_box_shows_the_folder_and_nothing_of_the_host(rooted: LocalBoxes) -> None:
    async with await rooted.open([File("f", b"x")], LIMITS, root="small") as box:
        look = "cat /etc/own /opt/tool/version /var/lib/data/f f; id -un; ls /usr/bin"
        seen = await box.run(["sh", "-c", look])
        assert seen.stdout.split()[:4] == [b"own", b"7", b"data", b"xuser"]
        assert set(seen.stdout.split()[4:]) == {name.encode() for name in PROGRAMS}
        missing = await box.run(["sh", "-c", "ls /etc/alternatives /etc/ssl /var/log"])
        assert missing.exit_code != 0
        for place in (
            "/",
            "/etc",
            "/opt",
            "/opt/tool",
            "/srv",
            "/usr/bin",
            "/var/lib",
            "/home/me",
            "/host",
        ):
            assert (await box.run(["touch", f"{place}/intruder"])).exit_code != 0
        assert (await box.read(["f"]))["f"].data == b"x"
        (child,) = await box.fork(1)
        assert (await child.run(["cat", "/etc/own", "f"])).stdout == b"own\nx"
        again = await rooted.restore(await (await box.snapshot()).export())
        assert (await again.run(["cat", "/etc/own", "f"])).stdout == b"own\nx"


async def test_mounts_are_added_to_the_hosts_own_root(rooted: LocalBoxes) -> None:
    many = [File(f"{n}", b"") for n in range(SHARED_FROM)]
    async with await rooted.open(many, LIMITS, root="more") as box:
        seen = await box.run(
            ["sh", "-c", "cat /opt/data/deep/version /one; python3 -c 'print(1)'; ls"]
        )
        assert seen.stdout.split()[:3] == [b"7", b"own", b"1"]
        assert len(seen.stdout.split()) == 3 + SHARED_FROM
        assert (await box.run(["touch", "/opt/data/deep/intruder"])).exit_code != 0
    async with await rooted.open(limits=LIMITS) as box:
        assert (await box.run(["ls", "/one"])).exit_code != 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown", "known: gone, more, relative, small, wrong"),
        ("gone", "there is no"),
        ("wrong", "cannot mount at '/tmp/x'"),
        ("relative", "cannot mount at 'opt/x'"),
    ],
)
async def test_a_root_that_cannot_be_is_said(rooted: LocalBoxes, name: str, message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        async with await rooted.open(limits=LIMITS, root=name) as box:
            await box.run(["true"])
    assert not rooted._open


@pytest.mark.usefixtures("native_built")
async def test_a_root_of_too_many_entries_is_said(folder: Path) -> None:
    mounts = {f"/opt/{'x' * 200}{number}": str(folder / "srv") for number in range(400)}
    boxes = NativeBoxes(roots={"many": Root(mounts=mounts)})
    with pytest.raises(SandboxError, match="too many"):
        await boxes.open(root="many")
    await boxes.close()
