"""What an audit is of, as one hash: the audit of one hash says nothing about another.

The hash covers all that the domain is made of (`domains.provenance`) and the files of the audit.
"""

import hashlib
from pathlib import Path

from practicum.domains.domain import Domain
from practicum.domains.provenance import domain_hash

_AUDIT = ("audit", "exhibits", "panel", "near_misses", "regenerate")  # as they are, not imports


def source_hash(domain: Domain) -> str:
    """16 hex digits that change whenever the domain, what it imports, or the audit changes."""
    total = hashlib.sha256(domain_hash(type(domain)).encode())
    for name in _AUDIT:
        total.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return total.hexdigest()[:16]
