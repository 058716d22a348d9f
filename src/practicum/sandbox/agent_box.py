"""A box whose commands an agent runs, one after the other: the native box and the weak one."""

import asyncio

from practicum.core import Limits, SandboxError
from practicum.sandbox.agent import Agent
from practicum.sandbox.contract import Result
from practicum.sandbox.local import Kind, LocalBox, LocalBoxes


class AgentBox(LocalBox):
    """What is said to an agent, and what its answers mean."""

    def __init__(self, boxes: LocalBoxes, slot: int, limits: Limits, kind: Kind) -> None:
        super().__init__(boxes, slot, limits, kind)
        self._one = asyncio.Lock()  # command at a time
        self._agent: Agent | None = None

    @property
    def alive(self) -> bool:
        """Whether it can run commands, as far as is known."""
        return self._agent is not None and self._agent.alive

    @property
    def pid(self) -> int:
        """On this host, of the process with which the box ends."""
        assert self._agent is not None
        return self._agent.pid

    async def _ask(
        self, request: bytes, stdin: bytes, *, seconds: float, output_bytes: int
    ) -> Result:
        """Have the agent run a request, and say how it ended."""
        async with self._one:
            if self.closed or self._agent is None:
                raise SandboxError("the box is closed: open another")
            try:
                ended = await self._agent.run(
                    request, stdin, seconds=seconds, cap=output_bytes, group=self.group
                )
            except SandboxError:
                if self.closed:
                    raise SandboxError("the box was closed while a command ran in it") from None
                raise
            code = ended.code
            return Result(
                stdout=bytes(ended.out.data),
                stderr=bytes(ended.err.data),
                exit_code=None if code is None or code < 0 else code,
                timed_out=code is None,
                signal=-code if code is not None and code < 0 else None,
                output_cut=ended.out.cut or ended.err.cut,
                out_of_memory=self.group.out_of_memory(),
                seconds=ended.seconds,
            )
