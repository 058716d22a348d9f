"""Archives: what we pack we get back, and no bytes from a guest can hurt the host."""

import io
import tarfile
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.core import Artifact, File, SandboxError
from practicum.sandbox.archive import clean_path, members, pack, unpack

names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)),
    min_size=1,
    max_size=120,
).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
files = st.builds(
    File,
    path=paths,
    data=st.binary(max_size=2000),
    mode=st.integers(0, 0o777),
    kind=st.sampled_from(["file", "dir"]),
)


@given(st.lists(files, max_size=6, unique_by=lambda file: file.path))
def test_what_is_packed_comes_back(given_files: list[File]) -> None:
    found = unpack(pack(given_files), ["."], 1 << 20)
    assert found == {
        f.path: Artifact(f.data if f.kind == "file" else b"", f.mode, f.kind) for f in given_files
    }


@given(st.binary(max_size=4000))
def test_arbitrary_bytes_are_no_error(stream: bytes) -> None:
    assert isinstance(unpack(stream, ["."], 100), dict)


@settings(max_examples=300)
@given(st.data())
def test_damaged_archives_are_no_error(data: st.DataObject) -> None:
    whole = bytearray(
        pack([File("a", b"1" * 700), File("b" * 150, b"2"), File("c", b"a", kind="symlink")])
    )
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for artifact in unpack(bytes(whole[:cut]), ["."], 500).values():
        assert len(artifact.data) <= 500


def test_a_cut_archive_never_yields_half_a_file() -> None:
    whole = pack([File("a", b"1" * 5000)])
    assert unpack(whole[:3000], ["a"], 1 << 20) == {}


def test_a_file_that_claims_to_be_huge_costs_nothing() -> None:
    info = tarfile.TarInfo("big")
    info.size = 1 << 50
    begin = time.monotonic()
    assert unpack(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024), ["big"], 1 << 20) == {}
    assert time.monotonic() - begin < 1


def test_devices_and_pipes_are_left_out() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Z"):
            info = tarfile.TarInfo(f"x{kind!r}")
            info.type = kind
            archive.addfile(info)
    found = unpack(buffer.getvalue(), ["."], 100)
    assert [a.kind for a in found.values()] in ([], ["file"])  # an unknown type reads as a file


def test_nothing_behind_a_link_is_believed() -> None:
    stream = pack([File("d", b"/etc", kind="symlink"), File("d/passwd", b"x"), File("e", b"y")])
    assert set(unpack(stream, ["d/passwd", "e"], 100)) == {"e"}
    assert set(unpack(stream, ["d", "d/passwd", "."], 100)) == {"d", "e"}


def test_tar_is_asked_for_parents_first_and_alone() -> None:
    asked = ["--no-recursion", "./a", "./a/b", "--recursion", "./a/b/c"]
    assert members(["a/b/c"]) == asked


@given(paths)
def test_clean_paths_stay_as_they_are(path: str) -> None:
    assert clean_path(path) == path
    assert clean_path(f"./{path}/") == path


@pytest.mark.parametrize("path", ["..", "../a", "/a", "a/../..", "\0", "a/../../b"])
def test_paths_that_leave_are_refused(path: str) -> None:
    with pytest.raises(SandboxError):
        clean_path(path)


def test_names_that_lead_out_are_left_out_whoever_wrote_the_archive() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../x", "/etc/x", "a/../../x", "..", "a/../kept"):
            archive.addfile(tarfile.TarInfo(name))
    assert list(unpack(buffer.getvalue(), ["."], 100)) == ["kept"]
