"""The native boxes of this machine, whoever opened them, as the list of processes shows them.

A box ends with its owner, so nothing has to be written down, and nothing written can be stale.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec
import psutil

from practicum.sandbox.cgroups import Cgroups

_NAME = "practicum-box"
_OWNER, _OWNER_OF_ZYGOTE = 2, 5  # which argument, in `box.c` and `zygote.py`
_DEPTH = 1  # pids of a process of our own pid namespace, as we see it
_STALE = 60.0  # seconds after which an empty cgroup is nobody's


class Running(msgspec.Struct, frozen=True):
    """One box."""

    pid: int  # on this host, of the process with which it ends
    owner: int  # pid of who opened it
    command: str  # of the owner; empty when that is gone
    user: int  # uid outside
    seconds: float  # since it was made
    processes: int  # inside, without pid 1
    megabytes: float  # resident, of its processes; files are not counted


def running() -> list[Running]:
    """Every box that can be seen, the oldest first."""
    found = []
    for process in psutil.process_iter(["name", "cmdline", "create_time", "uids"]):
        words = process.info["cmdline"] or []
        if not words or process.info["name"] != _NAME or not _is_pid_1(process.pid):
            continue  # also a box that was made in a container: its owner's pid says nothing here
        owner = int(words[_OWNER if os.path.basename(words[0]) == _NAME else _OWNER_OF_ZYGOTE])
        with contextlib.suppress(psutil.Error):
            inside = process.children(recursive=True)
            sizes = [p.memory_info().rss for p in (process, *inside)]
            found.append(
                Running(
                    process.pid,
                    owner,
                    _command(owner),
                    process.info["uids"].real,
                    time.time() - process.info["create_time"],
                    len(inside),
                    sum(sizes) / (1 << 20),
                )
            )
    return sorted(found, key=lambda box: -box.seconds)


def clean() -> tuple[int, int]:
    """Kill boxes whose owner is gone, and remove empty cgroups; how many of each."""
    killed = 0
    for box in running():
        if not box.command:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(box.pid, signal.SIGKILL)
                killed += 1
    return killed, Cgroups().sweep(older_than=_STALE)


def _is_pid_1(pid: int) -> bool:
    """Whether a process is the first of a pid namespace right below ours."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                pids = line.split()[1:]
                return len(pids) == _DEPTH + 1 and pids[-1] == "1"
    return False


def _command(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return ""
    except psutil.AccessDenied:
        return "?"
