"""What this host lets a box have, found out once, and what to do where it refuses."""

import os
import resource
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import msgspec

from practicum.core import SandboxError
from practicum.sandbox.seccomp import program

_PACKAGES = {"bwrap": "bubblewrap", "tar": "tar"}
_SYSCTL = Path("/proc/sys")
_MANY, _ALL = 1 << 16, 1 << 31  # uids mapped: a usual container has the first, a host the second


class Capabilities(msgspec.Struct, frozen=True):
    """What is enforced on the boxes of this host; nothing is claimed that is not."""

    memory: Literal["cgroup", "private, per process"]
    processes: Literal["cgroup and rlimit", "cgroup", "rlimit"]
    cpus: Literal["cgroup", "not limited"]
    workspace: Literal["sized tmpfs", "each file"]
    own_uid: bool  # a uid of its own for each box, apart from every other on the host
    system_calls_filtered: bool
    network: Literal["none or by proxy", "own loopback", "no TCP"] = "none or by proxy"
    kernel: Literal["shared", "user space"] = "shared"  # shared: no wall against a kernel bug

    def refuse_without(self, wanted: Collection[str]) -> None:
        """SandboxError when a limit in `wanted` does not hold for a box as a whole here."""
        weak = {
            "memory": self.memory != "cgroup",
            "cpus": self.cpus != "cgroup",
            "processes": self.processes == "rlimit",
            "own_uid": not self.own_uid,
            "system_calls_filtered": not self.system_calls_filtered,
        }
        unknown = sorted(set(wanted) - set(weak))
        if unknown:
            known = ", ".join(sorted(weak))
            raise SandboxError(f"boxes.require has {unknown[0]!r}; known: {known}")
        lacking = sorted(name for name in wanted if weak[name])
        if lacking:
            raise SandboxError(
                f"this host does not enforce {', '.join(lacking)} for a whole box, and "
                "boxes.require asks for it: run as root on a host with cgroups, or require less"
            )


class Programs(msgspec.Struct, frozen=True):
    """Absolute paths of the launchers."""

    bwrap: str
    unshare: str
    nsenter: str
    setpriv: str

    @classmethod
    def find(cls) -> "Programs":
        """Look them up; SandboxError says which package is missing."""
        path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        found = {name: shutil.which(name, path=path) for name in (*cls.__struct_fields__, "tar")}
        missing = sorted({_PACKAGES.get(n, "util-linux") for n, p in found.items() if not p})
        if missing:
            raise SandboxError(
                f"the sandbox needs {', '.join(missing)}: install it, for example with "
                f"`apt-get install {' '.join(missing)}`"
            )
        return cls(**{name: found[name] or "" for name in cls.__struct_fields__})


def capabilities(controllers: set[str]) -> Capabilities:
    """The record for boxes that may use these cgroup controllers."""
    return Capabilities(
        memory="cgroup" if "memory" in controllers else "private, per process",
        processes="cgroup and rlimit" if "pids" in controllers else "rlimit",
        cpus="cgroup" if "cpu" in controllers else "not limited",
        workspace="sized tmpfs",
        own_uid=os.geteuid() == 0 and _uid_range()[2] > _ALL,
        system_calls_filtered=bool(program()),
    )


def box_uid(slot: int) -> int:
    """A uid for the box in `slot`: ours when we cannot choose, else one that nobody uses.

    Raises SandboxError where the guest would have to be root on the host.
    """
    first, outside, count = _uid_range()
    if os.geteuid() != 0:
        return os.geteuid()
    if count < _MANY and outside == 0:
        raise SandboxError(
            "this process is the host's root in a user namespace that maps no other uid: a guest "
            "would be root on the host; start it outside of that namespace or as another user"
        )
    if count < _MANY:
        return 0  # root in name only: outside it is the user who made this namespace
    if count > _ALL:
        return 1_000_000_000 + os.getpid() * 256 + slot % 256  # pids are below 2**22
    return first + count - 2 - slot % 256  # a container: shared with boxes of its other processes


def hard_limit(kind: int, wanted: int) -> int:
    """`wanted`, or what we may still ask for when that is less."""
    _, hard = resource.getrlimit(kind)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def advice(detail: str) -> str:
    """What went wrong while namespaces were made, and what to do about it on this host."""
    if _value("kernel/apparmor_restrict_unprivileged_userns") == "1":
        cure = (
            "AppArmor restricts user namespaces here (Ubuntu 23.10 and later): "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    elif _value("kernel/unprivileged_userns_clone") == "0":
        cure = "user namespaces are off: `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
    elif _value("user/max_user_namespaces") == "0":
        cure = "user namespaces are off: `sudo sysctl -w user.max_user_namespaces=15000`"
    else:
        cure = (
            "inside a container, start it with `--security-opt seccomp=unconfined --security-opt "
            "apparmor=unconfined --security-opt systempaths=unconfined` (docker, podman); "
            "elsewhere check that `unshare --user --map-root-user --mount true` works"
        )
    return f"cannot make a box: {detail.strip() or 'no message'}. {cure}"


def _uid_range() -> tuple[int, int, int]:
    """First uid, the same uid outside, and length of the largest range mapped for us."""
    rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, outside, count = max(rows, key=lambda row: int(row[2]))
    return int(first), int(outside), int(count)


def _value(name: str) -> str:
    try:
        return (_SYSCTL / name).read_text().strip()
    except OSError:
        return ""
