"""Bytes under their own hash: what is equal is stored once, compressed, and checked when read."""

import threading
import zlib
from pathlib import Path

from blake3 import blake3

from practicum.core import StoreError
from practicum.store import files


class Blobs:
    """One folder of blobs, each whole or absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def put(self, data: bytes) -> str:
        """Store bytes, durably, and return their digest. Any thread may call it.

        Raises StoreError when they cannot be written.
        """
        digest = blake3(data).hexdigest()
        path = self.folder / digest
        with self._lock:
            if not path.exists():
                files.write_atomic(path, zlib.compress(data))
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of this digest. Raises StoreError when they are missing or corrupt."""
        path = self.folder / digest
        packed = files.read_bytes(path)
        try:
            data = zlib.decompress(packed)
        except zlib.error:
            data = None
        if data is None or blake3(data).hexdigest() != digest:
            raise StoreError(
                f"{path} is corrupt (it differs from its hash): restore it from a copy"
            )
        return data
