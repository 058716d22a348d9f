"""One content hash for the whole house: the same value gives the same hash in any process."""

import hashlib
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(order="deterministic")


def content_hash(value: Any, *, length: int = 16) -> str:
    """Hex SHA-256 (its first `length` digits) of the canonical JSON of `value`.

    `value` is anything msgspec can encode: structs, dicts, sequences, bytes, numbers, strings.
    """
    return hashlib.sha256(_encoder.encode(value)).hexdigest()[:length]
