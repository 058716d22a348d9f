"""Boxes by gVisor: a kernel of their own in user space (`runsc`), for guests one does not trust.

What a guest asks of a kernel is answered by a process without privileges, which itself may ask very
little of the host's: a bug in the host's kernel is far harder to reach than from any other local
box. It costs: a command takes some 50 ms, a system call many times that of a native box.

Inside: /workspace, /tmp and /dev/shm (each a tmpfs of `Limits.workspace_mb`; nothing else can be
written), the host's /usr, a loopback and no other network, uid 1000 without capabilities. Memory
and processors are limited by a cgroup around gVisor as a whole, so that a box that takes too much
memory dies whole.

The runsc of Debian 12 does not know what `stat` and `ls -l` of its own coreutils ask for, and they
fail; a root with `mounts` of a static busybox at /usr/bin/ls and /usr/bin/stat helps.
"""

import io
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from practicum.core import Limits, SandboxError
from practicum.sandbox.container import (
    CAPABILITIES,
    FIRST,
    GUEST,
    PER_SECOND,
    STARTING,
    ContainerBox,
    ContainerBoxes,
)
from practicum.sandbox.layout import Root
from practicum.sandbox.local import OPEN_FILES, WORKSPACE, Kind
from practicum.sandbox.skeleton import skeleton

_PREFIX = "practicum-gvisor-"
_OWN_MEMORY = 128  # megabytes that gVisor itself may take
_OWN_TASKS, _TASKS_OF_ONE = 512, 32  # threads of its own, and more for a process of the guest


class GvisorBoxes(ContainerBoxes):
    """Makes gVisor boxes; implements `Boxes`."""

    def __init__(
        self,
        max_running: int = 4,
        *,
        ahead: int = 0,
        roots: Mapping[str, Root] | None = None,
        delay: Callable[[], Awaitable[None]] | None = None,
        per_second: float = PER_SECOND,
        starting: int = STARTING,
        platform: str = "",
    ) -> None:
        """See `ContainerBoxes`. `platform` is one of runsc's, else what it takes by itself.

        Raises SandboxError when runsc is not installed, or we are not root.
        """
        runsc = find()
        super().__init__(
            max_running,
            ahead=ahead,
            roots=roots,
            delay=delay,
            per_second=per_second,
            starting=starting,
        )
        self.capabilities = msgspec.structs.replace(
            self.capabilities,
            own_uid=False,
            system_calls_filtered=True,
            network="own loopback",
            kernel="user space",
        )
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self.runsc = [runsc, "--root", str(self.folder / "state"), "--network=none"]
        self.runsc += ["--ignore-cgroups", *([f"--platform={platform}"] if platform else [])]
        self._skeletons: dict[str, tuple[Path, list[tuple[str, str]]]] = {}

    def _new(self, slot: int, limits: Limits, kind: Kind) -> "GvisorBox":
        return GvisorBox(self, slot, limits, kind)

    def root_of(self, name: str) -> tuple[Path, list[tuple[str, str]]]:
        """The folder for a root, made when first asked for, and what is bound to it."""
        if name not in self._skeletons:
            tar, bound = skeleton(self.layout(name))
            folder = self.folder / f"root-{len(self._skeletons)}"
            with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
                archive.extractall(folder, filter="fully_trusted")
            self._skeletons[name] = folder, bound
        return self._skeletons[name]

    async def close(self) -> None:
        """Close every box that is still open."""
        await super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


class GvisorBox(ContainerBox):
    """One gVisor box; implements `Sandbox`. Made by `GvisorBoxes.open`."""

    boxes: GvisorBoxes

    async def _making(self) -> list[str]:
        limits = self.limits
        config = self._config()
        around = msgspec.structs.replace(
            limits,
            memory_mb=limits.memory_mb + _OWN_MEMORY,
            processes=limits.processes * _TASKS_OF_ONE + _OWN_TASKS,
        )
        self.group = self.boxes.cgroups.take(around)
        bundle = self.boxes.folder / self.name
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(config))
        return [
            *self.group.launcher(),
            *self.boxes.runsc,
            "run",
            "--bundle",
            str(bundle),
            self.name,
        ]

    def _config(self) -> dict[str, Any]:
        """The box as the runtime specification of the OCI describes it."""
        folder, bound = self.boxes.root_of(self.kind.root)
        size = f"size={self.limits.workspace_mb << 20}"
        mounts = [_mount("/proc", "proc"), _mount("/dev", "tmpfs")]
        for source, target in bound:
            mounts.append(_mount(f"/{target}", "bind", "rbind", "ro", source=source))
        for target in (WORKSPACE, "/tmp", "/dev/shm"):
            mounts.append(_mount(target, "tmpfs", "nosuid", "nodev", "mode=755", size))
        # the gate of a command sets its limits anew: a guest could lower them for all that follow
        held = [f"CAP_{name}" for name in (*CAPABILITIES, "SYS_RESOURCE")]
        limits = {"RLIMIT_NOFILE": OPEN_FILES, "RLIMIT_CORE": 0}
        return {
            "ociVersion": "1.0.2",
            "hostname": "box",
            "root": {"path": str(folder), "readonly": True},
            "process": {
                "user": {"uid": 0, "gid": 0},
                "cwd": "/",
                "args": list(FIRST),
                "env": ["PATH=/usr/bin:/bin"],
                "noNewPrivileges": True,
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
                "rlimits": [{"type": t, "soft": n, "hard": n} for t, n in limits.items()],
            },
            "mounts": mounts,
            "linux": {
                "namespaces": [{"type": t} for t in ("pid", "network", "ipc", "uts", "mount")]
            },
        }

    def _entering(self, root: bool) -> list[str]:
        return [*self.boxes.runsc, "exec", "-user", "0:0" if root else GUEST, self.name]

    def _removing(self) -> list[str]:
        return [*self.boxes.runsc, "delete", "-force", self.name]

    async def _end(self) -> None:
        await super()._end()
        shutil.rmtree(self.boxes.folder / self.name, ignore_errors=True)


def find() -> str:
    """The path of runsc. SandboxError when it is not there, or cannot be used."""
    found = shutil.which("runsc", path=os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin")
    if not found:
        raise SandboxError(
            "runsc is not installed: install gVisor, for example with `apt-get install runsc`, or "
            "use native boxes (boxes.backend)"
        )
    if os.geteuid() != 0:
        raise SandboxError("gVisor boxes are made by root: start as root, or use native boxes")
    return found


def _mount(target: str, kind: str, *options: str, source: str = "") -> dict[str, Any]:
    return {
        "destination": target,
        "type": kind,
        "source": source or kind,
        "options": list(options),
    }


def _sweep() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = re.match(r"\d+", folder.name.removeprefix(_PREFIX))
        if owner and not Path("/proc", owner[0]).exists():
            with suppress(OSError):
                shutil.rmtree(folder)
