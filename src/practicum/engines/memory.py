"""Give freed memory back between phases: sampling and training do not peak at the same time."""

import ctypes

_M_ARENA_MAX = -8  # of glibc's malloc.h


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
