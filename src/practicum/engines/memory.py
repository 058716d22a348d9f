"""Give freed memory back between phases: sampling and training do not peak at the same time."""

import ctypes


def release_freed_memory() -> None:
    """Ask glibc to return what its arenas hold unused; does nothing under another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
