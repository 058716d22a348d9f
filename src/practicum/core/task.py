"""A task: one problem, frozen, whose key is the hash of all that defines it."""

from functools import cached_property
from typing import Any, Literal

import msgspec

from practicum.core.hashing import content_hash


class File(msgspec.Struct, frozen=True):
    """A file laid into a workspace. `path` is relative to it, with forward slashes."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    kind: Literal["file", "dir", "symlink"] = "file"  # a symlink's target is its `data`


class Limits(msgspec.Struct, frozen=True):
    """What one episode may use up. Time is the policy's own commands; our queues never count."""

    turns: int = 3
    tokens: int = 160  # sampled tokens, all turns together
    seconds: float = 30.0  # run time of the policy's commands, all turns together
    command_seconds: float = 10.0
    observation_chars: int = 600
    memory_mb: int = 512
    processes: int = 64
    cpus: float = 1.0  # processors that all commands of the box together may keep busy
    output_bytes: int = 64 * 1024
    workspace_mb: int = 32
    network: tuple[str, ...] = ()  # "loopback", or "host:port" of what may be reached by a proxy


class Task(msgspec.Struct, frozen=True, dict=True):
    """One problem. `truth` is for the grader alone: it never enters a prompt or the agent's box."""

    domain: str
    seed: int
    level: int
    prompt: str
    tools: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    artifacts: tuple[str, ...] = ()  # paths that grading may see, relative to the workspace
    truth: dict[str, Any] = {}
    limits: Limits = Limits()
    root: str = ""  # the root file system of its boxes, by the name that a recipe gives it

    @cached_property
    def key(self) -> str:
        """Content hash, 16 hex digits: equal tasks have equal keys in every process."""
        return content_hash(self)

    @property
    def canary(self) -> str:
        """The secret of an impossible task (`rewards.canaries`); empty for any other."""
        return str(self.truth.get("canary", ""))
