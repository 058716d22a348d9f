"""Reads a tar.gz that a candidate made, in memory and within bounds; nothing goes to disk."""

import gzip
import io
import posixpath
import tarfile
import zlib

MAX_BYTES = 4 << 20
"""The most that an archive may hold once unpacked."""


def members(data: bytes) -> dict[str, bytes]:
    """The regular files in a tar.gz by normalised path.

    Raises ValueError when `data` is not a tar.gz, or unpacks to more than `MAX_BYTES`.
    """
    try:
        unpacker = zlib.decompressobj(wbits=31)
        raw = unpacker.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"not a gzip file: {error}") from error
    if unpacker.unconsumed_tail:
        raise ValueError(f"unpacks to more than {MAX_BYTES} bytes")
    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            for member in archive:
                reader = archive.extractfile(member) if member.isreg() else None
                if reader is not None:
                    files[posixpath.normpath(member.name)] = reader.read()
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, IndexError) as error:
        raise ValueError(f"not a tar archive: {error}") from error
    return files


def pack(files: dict[str, bytes]) -> bytes:
    """A tar.gz of these files: the same bytes on every machine (stored, no times, no owners)."""
    raw, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:", format=tarfile.USTAR_FORMAT) as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    with gzip.GzipFile("", "wb", compresslevel=0, fileobj=packed, mtime=0) as stored:
        stored.write(raw.getvalue())
    return packed.getvalue()
