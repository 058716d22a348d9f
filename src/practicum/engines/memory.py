"""Give freed memory back between phases: sampling and training do not peak at the same time."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE = 4 << 20  # bytes


def release_freed_memory() -> None:
    """Ask glibc to return what its arenas hold unused; does nothing under another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_arenas(threads: int) -> None:
    """Let glibc keep one arena a thread at most: what each arena has freed, others cannot use."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, threads)


def map_large_tensors() -> None:
    """Let glibc give each large block memory of its own, which goes back once the block is freed.

    In a heap what is kept from a forward pass holds what was freed around it: half of all memory on
    a long text. The kernel's work for it costs a long text up to a fifth more time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, 16 * _LARGE)
