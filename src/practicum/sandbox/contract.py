"""The contract of a box: an isolated workspace that outlives commands and dies without a trace.

Every box has no network but what its task names, and limits on time, memory, processes and output.
Errors of the box itself raise `SandboxError`; whatever the guest does is a `Result`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

from practicum.core import Artifact, File, Limits
from practicum.sandbox.network import Request


class Result(msgspec.Struct, frozen=True):
    """How a command ended. The exit status comes from the kernel, never from text in the output."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None  # None when it was killed: at the deadline or by a signal
    timed_out: bool = False
    signal: int | None = None
    output_cut: bool = False  # more was printed than `Limits.output_bytes` (per stream)
    out_of_memory: bool = False  # the kernel killed something of it; known where there are cgroups
    seconds: float = 0.0


class Snapshot(ABC):
    """All that the guest could write, at one moment: /workspace, /tmp and /dev/shm.

    What it takes is given back when nothing refers to it any more, nor any box made from it.
    """

    limits: Limits

    @abstractmethod
    async def export(self) -> "Archive":
        """The same in a form that can be kept, looked at and carried elsewhere."""


class Archive(Snapshot):
    """A snapshot as a plain tar file with paths from the root of the box."""

    def __init__(self, data: bytes, limits: Limits, root: str = "") -> None:
        self.data, self.limits, self.root = data, limits, root

    async def export(self) -> "Archive":
        """Itself."""
        return self


class Sandbox(Protocol):
    """One box. Paths are relative to the workspace, which is /workspace inside."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        stdin: bytes = b"",
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a command as the guest; everything it started is dead when this returns."""
        ...

    async def python(
        self,
        args: Sequence[str],
        *,
        cwd: str = "",
        stdin: bytes = b"",
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run `python3 ARGS`, like `run`, but without its start where modules were preloaded."""
        ...

    async def read(self, paths: Sequence[str], *, max_bytes: int = 1 << 20) -> dict[str, Artifact]:
        """Copy out what exists at `paths`, directories with all that is in them.

        Read as the guest, never by a host path. Links are not followed, devices and pipes are
        left out, a file over `max_bytes` comes back cut with `truncated` set.
        """
        ...

    async def write(self, files: Sequence[File]) -> None:
        """Lay files into the workspace as the guest, with their parents; existing ones go."""
        ...

    def requests(self) -> list[Request]:
        """What its commands asked of the network since this was asked last."""
        ...

    async def snapshot(self) -> Snapshot:
        """What the box holds now. Modes and links are kept, sockets are left out."""
        ...

    async def fork(self, count: int) -> "list[Sandbox]":
        """Boxes that hold what this one holds now, and from then on go their own ways."""
        ...

    async def close(self) -> None:
        """Kill what runs, remove the workspace. May be called twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None: ...


class Boxes(Protocol):
    """Makes boxes, and bounds how many run commands at once."""

    async def open(
        self,
        files: Sequence[File] = (),
        limits: Limits = Limits(),  # noqa: B008
        *,
        preload: Sequence[str] = (),
        root: str = "",
    ) -> Sandbox:
        """A fresh box whose workspace holds `files`, in a root file system by its name.

        `preload` names modules that its `python` may have imported before. They come from the box's
        own system, so that a file of the task which has the name of one is not imported instead.
        """
        ...

    async def restore(self, snapshot: Snapshot) -> Sandbox:
        """A fresh box that holds what another one held."""
        ...

    async def close(self) -> None:
        """Close every box that is still open."""
        ...
