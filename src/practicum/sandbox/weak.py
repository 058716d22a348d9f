"""The weak box, for hosts that allow no namespaces; used only when it is asked for by name.

A command may read the host's programs and write its own folder, reaches no TCP, and is limited for
each process. It sees the host's other processes' names and sockets in the file system, its folder
is on the host's disk without a bound on its size, and as an ordinary user the guest has the same
user id as you. `docs/sandbox.md` says what that means. The agent is `weak_agent.py`.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from practicum.core import Limits, SandboxError
from practicum.sandbox.agent import Agent
from practicum.sandbox.agent_box import AgentBox
from practicum.sandbox.command import spawn
from practicum.sandbox.contract import Result
from practicum.sandbox.local import KEPT, OPEN_FILES, Kind, LocalBoxes
from practicum.sandbox.native import pack
from practicum.sandbox.seccomp import program
from practicum.sandbox.weak_agent import landlock_version

AGENT = Path(__file__).with_name("weak_agent.py")
_PREFIX = "practicum-weak-"
_DEVICES = ("null", "zero", "full", "random", "urandom")


class WeakBoxes(LocalBoxes):
    """Makes weak boxes; implements `Boxes`, but for roots, hosts and sizes of workspaces."""

    def _set_up(self) -> None:
        if not landlock_version():
            raise SandboxError(
                "this kernel has no Landlock (5.13 or later, in the list of its security modules), "
                "without which the weak box would be no box: use another host"
            )
        self.capabilities = msgspec.structs.replace(
            self.capabilities, workspace="each file", network="no TCP"
        )
        _sweep()

    def _new(self, slot: int, limits: Limits, kind: Kind) -> "WeakBox":
        return WeakBox(self, slot, limits, kind)


class WeakBox(AgentBox):
    """One weak box; implements `Sandbox`."""

    boxes: WeakBoxes

    async def start(self, tar: bytes) -> None:
        """Make the folder and the agent, and lay the files of `tar`."""
        limits = self.limits
        if limits.network or self.kind.root:
            raise SandboxError("a weak box has no network and no other root than the host's own")
        self.base = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        for name in ("", "dev", *KEPT):
            os.makedirs(os.path.join(self.base, name), exist_ok=True)
            if self.uid != os.geteuid():
                os.chown(os.path.join(self.base, name), self.uid, self.uid)
        self.group = self.boxes.cgroups.take(limits)
        sizes = {
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_FSIZE": limits.workspace_mb << 20,
            "RLIMIT_DATA": limits.memory_mb << 20,
        }
        if self.uid != os.geteuid():
            sizes["RLIMIT_NPROC"] = limits.processes  # else it would count all that is yours
        etc = ("alternatives", "ld.so.cache", "ssl/certs", "passwd", "group", "nsswitch.conf")
        rules = {
            "limits": sizes,
            "readable": ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"]
            + [f"/etc/{name}" for name in etc]
            + [str(self.boxes.image / "python"), "/proc"],
            "writable": [self.base, *(f"/dev/{name}" for name in _DEVICES)],
            "filter": program(weak=True).hex(),
        }
        agent = self._agent = Agent()
        try:
            theirs = agent.theirs.fileno()
            command = [sys.executable, "-I", str(AGENT), str(theirs), str(self.uid)]
            spawn(
                [*self.group.launcher(), *command, json.dumps(rules)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs,),
            )
        except OSError as error:
            raise SandboxError(f"cannot start a box: {error}; is the host full?") from error
        finally:
            agent.theirs.close()
        await agent.ready()
        await self.lay_first(tar)

    async def _execute(
        self,
        words: Sequence[bytes],
        *,
        env: Mapping[str, str],
        seconds: float,
        output_bytes: int,
        stdin: bytes = b"",
        reads_all: bool = False,
        python: bool = False,
    ) -> Result:
        """See `LocalBox._execute`; files of which the guest took itself the right stay unread."""
        folder, *argv = words
        env = {**env, "TMPDIR": f"{self.base}/tmp", "PYTHONPATH": f"{self.boxes.image}/python"}
        request = pack(b"X0", folder, argv, env)
        return await self._ask(request, stdin, seconds=seconds, output_bytes=output_bytes)

    async def _end(self) -> None:
        """End the agent, which kills all that runs, and remove the folder."""
        agent, self._agent = self._agent, None
        if agent:
            await agent.close(kill=False)
        if self.base != "/":
            await asyncio.to_thread(_remove, self.base)


def _remove(folder: str) -> None:
    """With folders that are closed, or deeper than Python's own remover can go."""
    subprocess.run(["chmod", "-R", "u+rwX", folder], check=False, capture_output=True)
    subprocess.run(["rm", "-rf", folder], check=False, capture_output=True)


def _sweep() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        ours = os.geteuid() in (0, folder.stat().st_uid)
        if ours and not Path("/proc", pid).exists():
            _remove(str(folder))
