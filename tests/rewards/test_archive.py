import contextlib
import gzip
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.rewards.archive import MAX_BYTES, members, pack

PATHS = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}", fullmatch=True)


@given(st.dictionaries(PATHS, st.binary(max_size=50), max_size=5))
def test_what_was_packed_is_read_back_and_packs_to_the_same_bytes(files):
    assert members(pack(files)) == files
    assert pack(files) == pack(dict(files))


@given(st.binary(max_size=300) | st.binary(max_size=300).map(gzip.compress))
def test_junk_is_a_value_error(data):
    with contextlib.suppress(ValueError):
        assert all(isinstance(content, bytes) for content in members(data).values())


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_archive_never_raises_anything_else(at, value):
    raw = bytearray(gzip.decompress(pack({"a/b": b"tiger", "c": b"lemon"})))
    raw[at] = value
    with contextlib.suppress(ValueError):
        assert len(members(gzip.compress(bytes(raw)))) <= 2


def test_a_bomb_is_refused():
    with pytest.raises(ValueError, match="unpacks to more"):
        members(gzip.compress(bytes(MAX_BYTES + 1)))


def test_links_and_folders_are_not_files_and_paths_are_normal():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, kind in (
            ("./a", tarfile.REGTYPE),
            ("b", tarfile.SYMTYPE),
            ("d", tarfile.DIRTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "a"
            archive.addfile(entry)
    assert members(buffer.getvalue()) == {"a": b""}
