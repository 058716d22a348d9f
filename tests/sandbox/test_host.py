"""Hosts that cannot make boxes: one error that says what to do. And the same suite as a user."""

# ruff: noqa: ASYNC240

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from practicum.core import Limits, SandboxError
from practicum.sandbox import BubblewrapBoxes, host, image, open_boxes, seccomp
from practicum.sandbox.cgroups import Cgroups
from practicum.sandbox.local import LocalBoxes

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda n, **k: None if n == "bwrap" else real(n, **k))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        BubblewrapBoxes()


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_restrict"),
        ("kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "max_user_namespaces=15000"),
        ("none", "", "security-opt"),
    ],
)
def test_a_refusing_kernel_is_answered_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, cure: str
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(value)
    monkeypatch.setattr(host, "_SYSCTL", tmp_path)
    assert cure in host.advice("unshare failed: Operation not permitted")


FORBIDDEN = """
import asyncio
from practicum.core import SandboxError
from practicum.sandbox import BubblewrapBoxes

async def main():
    try:
        await BubblewrapBoxes().open()
    except SandboxError as error:
        print("refused:", error)

asyncio.run(main())
"""


def as_nobody() -> list[str]:
    """Words that start a Python with our packages as an ordinary user, or skip."""
    if os.geteuid() != 0:
        pytest.skip("already an ordinary user")
    packages = sysconfig.get_path("purelib")
    for python in (sys.executable, "/usr/bin/python3"):
        command = [*NOBODY, "env", "-i", "PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"]
        command += [f"PYTHONPATH={REPOSITORY / 'src'}:{packages}", python]
        probe = [*command, "-c", "import msgspec, pytest, pytest_asyncio, hypothesis, packaging"]
        if subprocess.run(probe, capture_output=True, cwd="/", check=False).returncode == 0:
            return command
    pytest.skip("no Python that another user could start finds our packages")


def test_no_user_namespaces_is_one_clear_error() -> None:
    inner = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    if os.geteuid() != 0:
        words = [sys.executable, "-c", FORBIDDEN]
        words = ["unshare", "--user", "--map-root-user", "sh", "-c", inner, "sh", *words]
    else:
        user = as_nobody()
        cut = user.index("env")
        words = [*user[:cut], "unshare", "--user", "--map-root-user", "sh", "-c", inner, "sh"]
        words += [*user[cut:], "-c", FORBIDDEN]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", check=False)
    assert done.stdout.startswith("refused: cannot make a box"), done.stderr
    assert "max_user_namespaces=15000" in done.stdout


def test_root_of_the_host_without_other_uids_is_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    words = ["unshare", "--user", "--map-root-user", sys.executable, "-c", FORBIDDEN]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "refused:" in done.stdout
    assert "root on the host" in done.stdout


@pytest.mark.slow
def test_the_suite_passes_as_an_ordinary_user() -> None:
    command = as_nobody()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("conftest.py", "test_contract.py", "test_death.py", "test_abuse.py"):
            shutil.copy(Path(__file__).with_name(file), folder)
        (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
        (folder / "scratch").mkdir()
        os.chown(folder / "scratch", 65534, 65534)
        command += ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["--basetemp", str(folder / "scratch" / "base"), name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=name, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


async def test_the_record_of_what_is_enforced_is_true(boxes: LocalBoxes) -> None:
    record = boxes.capabilities
    assert record.system_calls_filtered == bool(seccomp.program())
    async with await boxes.open(limits=Limits(memory_mb=100, workspace_mb=10, processes=20)) as box:
        data = (await box.run(["sh", "-c", "ulimit -d; ulimit -p; ulimit -n"])).stdout.split()
        groups = (await box.run(["cat", "/proc/self/cgroup"])).exit_code
    assert groups == 0
    assert data[1:] == [b"21", b"1024"]
    assert (data[0] == b"unlimited") == (record.memory == "cgroup")
    assert record.own_uid == (os.geteuid() == 0 and host.box_uid(1) > 1 << 16)


async def test_each_box_has_its_own_uid_on_the_host(boxes: LocalBoxes) -> None:
    if not boxes.capabilities.own_uid:
        pytest.skip("only root can give uids away")
    one, two = await boxes.open(), await boxes.open()
    uids = [Path(f"/proc/{box.pid}").stat().st_uid for box in (one, two)]  # type: ignore
    assert len({0, os.getuid(), *uids}) == 3


def test_cgroups_that_cannot_be_made_are_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    assert Cgroups(tmp_path).parents == {}
    assert Cgroups(tmp_path).take(Limits()).folders == []


def test_the_image_is_remade_when_a_cleaner_took_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image, "_cache_folders", lambda: [tmp_path / "cache"])
    image.image.cache_clear()
    folder = image.image()
    assert (folder / "python/pytest/__init__.py").is_file()
    assert image._complete(folder)
    victim = folder / "etc/hosts"
    victim.unlink()
    assert not image._complete(folder)
    image.image.cache_clear()
    assert image.image() == folder
    assert image._complete(folder)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]
    image.image.cache_clear()


def test_a_cache_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(PermissionError):
            image._own(tmp_path / name)


def test_the_filter_is_well_formed() -> None:
    program = seccomp.program()
    assert len(program) % 8 == 0
    count = len(program) // 8
    assert count < 4096
    for index in range(count):
        code, yes, no = program[8 * index], program[8 * index + 2], program[8 * index + 3]
        if code & 7 == 5:  # a jump lands inside the program
            assert index + 1 + max(yes, no) < count


@pytest.mark.parametrize("name", ["memory", "cpus", "processes", "own_uid"])
def test_a_limit_that_is_required_holds_here_or_is_refused(name: str) -> None:
    claimed = open_boxes().capabilities
    strong = {
        "memory": claimed.memory == "cgroup",
        "cpus": claimed.cpus == "cgroup",
        "processes": claimed.processes == "cgroup and rlimit",
        "own_uid": claimed.own_uid,
    }
    if strong[name]:
        assert open_boxes(require=[name]).capabilities == claimed
        return
    with pytest.raises(SandboxError, match=f"does not enforce {name}"):
        open_boxes(require=[name])


def test_a_limit_that_nobody_knows_cannot_be_required() -> None:
    with pytest.raises(SandboxError, match="known: cpus, memory, own_uid"):
        open_boxes(require=["speed"])
