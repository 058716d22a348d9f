"""Boxes by podman or docker, through the command line of whichever is there.

Nothing is pulled from a registry: the image of a box is a few kilobytes of our own, made once for
each root, over which the host's /usr is bound read-only, as in every other kind of box. Inside:
/workspace, /tmp and /dev/shm (each a tmpfs of `Limits.workspace_mb`; nothing else can be written),
a loopback and no other network, uid 1000 without capabilities, the same filter of system calls.

As root podman maps all of a box to uids that nobody has; docker does not, so that its guests are
uid 1000 of the host. And docker takes up to two seconds to notice the end of a command that left
behind processes which hold its output. Podman (4.3) takes no limit on the number of files, which
memory bounds instead.
"""

import asyncio
import errno
import hashlib
import json
import os
import resource
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from practicum.core import Limits, SandboxError
from practicum.sandbox import seccomp
from practicum.sandbox.container import (
    CAPABILITIES,
    FIRST,
    GUEST,
    PER_SECOND,
    STARTING,
    ContainerBox,
    ContainerBoxes,
    call,
)
from practicum.sandbox.host import capabilities, hard_limit
from practicum.sandbox.layout import Root
from practicum.sandbox.local import INODES, OPEN_FILES, WORKSPACE, Kind
from practicum.sandbox.skeleton import skeleton

_OURS = ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_HOST", "DOCKER_CONTEXT")
_UIDS = "0:2100000000:65536"  # above all uids of other boxes
_FEWEST = 32  # processes in a box; the threads by which an engine enters it are among them
_PROCESSES = 1 << 15  # rlimit, which no engine needs a capability for; the cgroup is lower


class PodmanBoxes(ContainerBoxes):
    """Makes boxes by podman, or docker where there is no podman; implements `Boxes`."""

    engines: tuple[str, ...] = ("podman", "docker")

    def __init__(
        self,
        max_running: int = 4,
        *,
        ahead: int = 0,
        roots: Mapping[str, Root] | None = None,
        delay: Callable[[], Awaitable[None]] | None = None,
        per_second: float = PER_SECOND,
        starting: int = STARTING,
    ) -> None:
        """See `ContainerBoxes`. SandboxError when there is no engine, or it does not answer."""
        program = find(self.engines)
        super().__init__(
            max_running,
            ahead=ahead,
            roots=roots,
            delay=delay,
            per_second=per_second,
            starting=starting,
        )
        self.is_podman = os.path.basename(program) == "podman"
        ours = [f"{name}={os.environ[name]}" for name in _OURS if name in os.environ]
        self.engine = ["/usr/bin/env", *ours, program]
        told = _info(*self.engine)
        self.controllers, filtered = _podman(told) if self.is_podman else _docker(told)
        self.maps_uids = self.is_podman and self.capabilities.own_uid
        self.capabilities = msgspec.structs.replace(
            capabilities(self.controllers),
            processes="cgroup" if "pids" in self.controllers else "rlimit",
            own_uid=False,
            system_calls_filtered=filtered,
            network="own loopback",
        )
        self._images: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        self._lock = asyncio.Lock()
        if filtered:
            self.fds = (os.memfd_create("filter"),)
            os.write(self.fds[0], json.dumps(profile()).encode())

    def _new(self, slot: int, limits: Limits, kind: Kind) -> "PodmanBox":
        return PodmanBox(self, slot, limits, kind)

    async def image_of(self, root: str) -> tuple[str, list[tuple[str, str]]]:
        """The name of the image for a root, made when first asked for, and what is bound to it."""
        rows = self.layout(root)
        async with self._lock:
            if root not in self._images:
                self._images[root] = await asyncio.to_thread(self._import, rows)
        return self._images[root]

    def _import(self, rows: list[tuple[str, str, str]]) -> tuple[str, list[tuple[str, str]]]:
        tar, bound = skeleton(rows)
        name = f"practicum-root:{hashlib.blake2b(tar, digest_size=8).hexdigest()}"
        try:
            call([*self.engine, "image", "inspect", name])
        except SandboxError:
            call([*self.engine, "import", "-", name], tar)
        return name, bound

    async def close(self) -> None:
        """Close every box that is still open."""
        await super().close()
        fds, self.fds = self.fds, ()
        for fd in fds:
            os.close(fd)


class DockerBoxes(PodmanBoxes):
    """Makes boxes by docker; implements `Boxes`."""

    engines = ("docker",)


class PodmanBox(ContainerBox):
    """One box; implements `Sandbox`. Made by `PodmanBoxes.open`."""

    boxes: PodmanBoxes

    async def _making(self) -> list[str]:
        boxes, limits = self.boxes, self.limits
        image, bound = await boxes.image_of(self.kind.root)
        words = "run -i --rm --pull never --log-driver none --network none --hostname box"
        walls = "--read-only --cap-drop ALL --security-opt no-new-privileges --user 0:0 --workdir /"
        argv = [*boxes.engine, *words.split(), *walls.split(), "--name", self.name]
        for name in CAPABILITIES:
            argv += ["--cap-add", name]
        files, processes = OPEN_FILES, hard_limit(resource.RLIMIT_NPROC, _PROCESSES)
        rlimits = {"core": 0, "msgqueue": 0, "nofile": files, "nproc": processes}
        for name, number in rlimits.items():
            argv += ["--ulimit", f"{name}={number}:{number}"]
        size = f"{limits.workspace_mb}m"
        options = f"rw,exec,nosuid,nodev,size={size},mode=755"
        options += ",notmpcopyup" if boxes.is_podman else f",nr_inodes={INODES}"
        for target in (WORKSPACE, "/tmp"):
            argv += ["--tmpfs", f"{target}:{options}"]
        argv += ["--shm-size", size]
        for source, target in bound:
            argv += ["--volume", f"{source}:/{target}:ro"]
        for fd in boxes.fds:
            argv += ["--security-opt", f"seccomp=/proc/self/fd/{fd}"]
        if boxes.is_podman:
            argv += ["--read-only-tmpfs=false", "--no-hosts"]
        if boxes.maps_uids:
            argv += ["--uidmap", _UIDS, "--gidmap", _UIDS]
        return [*argv, *self._cgroup_words(), image, *FIRST]

    def _cgroup_words(self) -> list[str]:
        """The limits of the box as a whole, as far as the engine can set them."""
        limits = self.limits
        memory = f"{limits.memory_mb + limits.workspace_mb}m"  # files count
        words = {
            "memory": ["--memory", memory, "--memory-swap", memory],
            "pids": ["--pids-limit", str(max(limits.processes + 1, _FEWEST))],
            "cpu": ["--cpus", str(limits.cpus)],
        }
        return [word for name in words if name in self.boxes.controllers for word in words[name]]

    def _entering(self, root: bool) -> list[str]:
        user = "0:0" if root else GUEST
        return [*self.boxes.engine, "exec", "-i", "--user", user, self.name]

    def _removing(self) -> list[str]:
        return [*self.boxes.engine, "rm", "--force", self.name]


def find(engines: Sequence[str]) -> str:
    """The path of the first engine that is there. SandboxError when none is."""
    path = os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin:/bin"
    for name in engines:
        if found := shutil.which(name, path=path):
            return found
    raise SandboxError(
        f"{' or '.join(engines)} is not installed: install it, for example with `apt-get install "
        "podman runc`, or use native boxes (boxes.backend)"
    )


@cache
def _info(*engine: str) -> dict[str, Any]:
    """What an engine says of itself. SandboxError when it does not answer."""
    try:
        told: dict[str, Any] = json.loads(call([*engine, "info", "--format", "{{json .}}"]))
    except SandboxError as error:
        raise SandboxError(f"{error}; start its daemon, or use another boxes.backend") from error
    return told


def _podman(told: dict[str, Any]) -> tuple[set[str], bool]:
    """From `podman info`: the cgroup controllers that it can use, and whether it filters calls."""
    host = told["host"]
    usable = set(host["cgroupControllers"] or ())
    if host["security"]["rootless"] and host["cgroupVersion"] == "v1":
        usable = set()
    return usable & {"memory", "pids", "cpu"}, host["security"]["seccompEnabled"]


def _docker(told: dict[str, Any]) -> tuple[set[str], bool]:
    """The same from `docker info`."""
    names = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    options = told["SecurityOptions"] or ()
    filtered = any(option.startswith("name=seccomp") for option in options)
    return {name for name, key in names.items() if told.get(key)}, filtered


def profile() -> dict[str, Any]:
    """The filter of `seccomp.py` in the form that engines read."""

    def refuse(names: list[str], error: int, **argument: int | str) -> dict[str, Any]:
        rule = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error}
        return {**rule, "args": [argument]} if argument else rule

    def equal(name: str, error: int, index: int, value: int) -> dict[str, Any]:
        return refuse([name], error, index=index, value=value, op="SCMP_CMP_EQ")

    last = max(seccomp.FAMILIES)
    families = [n for n in range(last) if n not in seccomp.FAMILIES]
    unshares = [1 << bit for bit in range(32) if seccomp.NEW_NAMESPACES >> bit & 1]
    some = ("socket", "clone", "ioctl", "prlimit64")  # by their arguments
    calls = [name for name in seccomp.CALLS if name not in some]
    absent = [name for name in calls if name in seccomp.ABSENT]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            refuse([name for name in calls if name not in absent], errno.EPERM),
            refuse(absent, errno.ENOSYS),
            *(equal("socket", errno.EAFNOSUPPORT, 0, number) for number in families),
            refuse(["socket"], errno.EAFNOSUPPORT, index=0, value=last + 1, op="SCMP_CMP_GE"),
            *(
                refuse(
                    ["clone"], errno.EPERM, index=0, value=b, valueTwo=b, op="SCMP_CMP_MASKED_EQ"
                )
                for b in unshares
            ),
            *(equal("ioctl", errno.EPERM, 1, request) for request in seccomp.TERMINAL_INJECTION),
            refuse(["prlimit64"], errno.EPERM, index=0, value=0, op="SCMP_CMP_NE"),
        ],
    }
