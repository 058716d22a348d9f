"""Practicum: post-training by practice, from a base model and tasks to a measured, better model."""

import os

__version__ = "0.1.0"

# Torch asks for huge pages on Linux when this is set before its first large allocation: on virtual
# machines, where walking page tables is dear, steps take a third less time.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
