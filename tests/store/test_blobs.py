"""What was graded: stored once, whole, under its hash, whoever stores it and whenever they die."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.core import StoreError
from practicum.store import Run
from practicum.store.blobs import Blobs


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_what_was_put_is_got_and_equal_bytes_lie_once(
    tmp_path_factory: pytest.TempPathFactory, many: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("blobs")
    blobs = Blobs(folder)
    digests = [blobs.put(data) for data in many + many]
    assert [blobs.get(digest) for digest in digests] == many + many
    assert len(list(folder.iterdir())) == len(set(many))


def test_blobs_are_compressed(tmp_path: Path) -> None:
    digest = Blobs(tmp_path).put(b"a line of a log\n" * 4096)
    assert (tmp_path / digest).stat().st_size < 1000


def test_threads_may_put_the_same_at_once(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    wanted = [b"%d" % (number % 5) * 2000 for number in range(100)]
    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(blobs.put, wanted))
    assert [blobs.get(digest) for digest in digests] == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(set(digests))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-3], lambda b: b"", lambda b: b[:9] + b"\0" + b[10:]]
)
def test_a_damaged_blob_is_never_given(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    blobs = Blobs(tmp_path)
    digest = blobs.put(bytes(range(256)))
    path = tmp_path / digest
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match="corrupt"):
        blobs.get(digest)
    shutil.copy(tmp_path / blobs.put(b"another"), path)
    with pytest.raises(StoreError, match="corrupt"):
        blobs.get(digest)
    path.unlink()
    with pytest.raises(StoreError, match="does not exist"):
        blobs.get(digest)


def test_a_run_keeps_and_a_reader_only_reads(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "") as run:
        digest = run.keep(b"out")
    seen = Run.view(tmp_path / "run")
    assert seen.kept(digest) == b"out"
    with pytest.raises(StoreError, match="reading only"):
        seen.keep(b"more")
    with Run.open(tmp_path / "run") as run:
        assert run.keep(b"out") == digest
    assert len(list((tmp_path / "run/artifacts").iterdir())) == 1


def test_stages_with_episodes_are_listed(tmp_path: Path) -> None:
    with Run.create(tmp_path, "") as run:
        run.write_episodes("rl", 1, [])
        run.write_episodes("rl", 2, [])
        run.write_episodes("sft-demonstrations", 0, [])
        assert run.episode_stages() == ["rl", "sft-demonstrations"]


PUT = """
import os, sys
from pathlib import Path
from practicum.store.blobs import Blobs
blobs = Blobs(Path(sys.argv[1]))
for number in range(10**6):
    print(blobs.put(os.urandom(200_000)), flush=True)
"""


def test_a_kill_leaves_whole_blobs_only(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PUT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    digests = [process.stdout.readline().strip() for _ in range(5)]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    blobs = Blobs(tmp_path)
    found = [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")]
    assert set(digests) <= set(found)
    for digest in found:
        assert len(blobs.get(digest)) == 200_000
