"""Which source a domain is made of, as one hash: the version of its grader.

The hash covers the domain's module, every module of its package and of ours that it imports
(transitively, found in the source without running it), and its version.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from practicum.domains.domain import Domain


def grader_version(domain: Domain) -> str:
    """The source hash of a domain as this process found it when it first asked."""
    return _version(type(domain))


@cache
def _version(kind: type[Domain]) -> str:
    return domain_hash(kind)


def domain_hash(kind: type[Domain]) -> str:
    """16 hex digits that change whenever the domain, or what it imports, changes on disk."""
    module = kind.__module__
    total = hashlib.sha256(f"{module}:{kind.__qualname__}:{kind.version}".encode())
    for name, path in sorted(module_files(module).items()):
        total.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def module_files(module: str) -> dict[str, Path]:
    """Source files of a module and of all it imports from practicum or its own package."""
    ours = {"practicum", module.partition(".")[0]}
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = None if name in found else _source(name)
        if path:
            found[name] = path
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            tree = ast.parse(path.read_bytes())
            waiting += [m for m in _imports(tree, package) if m.partition(".")[0] in ours]
    return found


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Names that may be modules: what is imported, and what is imported from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)]
            stem = ".".join(
                [*(above if node.level else []), *([node.module] if node.module else [])]
            )
            yield stem
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def _source(module: str) -> Path | None:
    """The file of a module, or None if there is no such module (a class, say) or no source."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)
