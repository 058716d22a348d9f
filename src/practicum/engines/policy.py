"""A policy that samples tokens, for many episodes at once.

Requests are decoded together once every episode in play is either waiting for a turn or over.
Batches therefore follow from what was said, never from how fast a box was. While a batch is being
decoded, the tools of turns that have already ended run.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import msgspec

from practicum.core import EngineError, Message, TokenRecord, Turn
from practicum.engines.contract import Completion, ContextFull, Prompt, Sampler, ToolSchemas
from practicum.models.render import Renderer


class SamplerPolicy:
    """`Policy` over a `Sampler`. `seed` keys the noise together with the episode's key."""

    def __init__(
        self,
        name: str,
        sampler: Sampler,
        renderer: Renderer,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        window: int = 8192,
        executor: Executor | None = None,
    ) -> None:
        self.name = name
        self.sampler, self.renderer = sampler, renderer
        self.temperature, self.seed, self.window = temperature, seed, window
        self._executor = executor or ThreadPoolExecutor(1, "sampler")
        self._order: dict[str, int] = {}  # episodes in play, in the order they began
        self._waiting: dict[str, tuple[Prompt, asyncio.Future[Completion]]] = {}
        self._decoding = False
        self._begun = 0

    async def begin(self, key: str) -> None:
        """Count the episode among those a batch waits for."""
        self._order[key] = self._begun
        self._begun += 1

    async def end(self, key: str) -> None:
        """Wait for this episode no longer; forget its rows."""
        self._order.pop(key, None)
        self.sampler.release([key])
        self._start_if_ready()

    async def respond(
        self,
        messages: Sequence[Message],
        tools: ToolSchemas,
        *,
        history: Sequence[Turn] = (),
        key: str = "",
        max_tokens: int = 256,
    ) -> Turn:
        """Sample the next turn; its record continues the tokens of `history`."""
        context, past = self._context(messages, tools, history)
        ids = (*past, *context)
        room = min(max_tokens, self.window - len(ids))
        if room <= 0:
            raise ContextFull(f"{len(ids)} tokens do not fit the window of {self.window}")
        noise = f"{self.seed}|{key}|{len(history)}"
        completion = await self._sample(key, Prompt(ids, noise, key, room))
        record = TokenRecord(
            tuple(context),
            completion.ids,
            completion.logprobs,
            completion.digest,
            self.temperature,
        )
        message = self.renderer.parse(completion.ids, completion.stop, tools)
        return Turn(message, completion.stop, record)

    def _context(
        self, messages: Sequence[Message], tools: ToolSchemas, history: Sequence[Turn]
    ) -> tuple[list[int], list[int]]:
        """Tokens to append before sampling, and all tokens before those."""
        past: list[int] = []
        for turn in history:
            if turn.record is None:
                raise EngineError("a turn without token records cannot be continued token by token")
            past += [*turn.record.context, *turn.record.ids]
        if not history:
            return self.renderer.start(messages, tools), past
        last = history[-1]
        assert last.record is not None
        ended = last.record.ids[-1] in self.renderer.stop_ids
        return self.renderer.bridge(last.results, ended=ended), past

    async def _sample(self, key: str, prompt: Prompt) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[key] = (prompt, future)
        self._start_if_ready()
        try:
            return await future
        finally:  # a cancelled request is asked for no longer
            self._waiting.pop(key, None)

    def _start_if_ready(self) -> None:
        ready = self._waiting and self._waiting.keys() >= self._order.keys()
        if not ready or self._decoding:
            return
        keys = sorted(self._waiting, key=lambda key: self._order.get(key, -1))
        batch = [self._waiting.pop(key) for key in keys]
        self._decoding = True
        asyncio.get_running_loop().create_task(self._decode(batch))

    async def _decode(self, batch: list[tuple[Prompt, "asyncio.Future[Completion]"]]) -> None:
        loop = asyncio.get_running_loop()

        def done(index: int, completion: Completion) -> None:
            loop.call_soon_threadsafe(_settle, batch[index][1], completion)

        def run() -> Any:
            prompts = [prompt for prompt, _ in batch]
            return self.sampler.sample(prompts, temperature=self.temperature, on_done=done)

        error: BaseException | None = None
        try:
            await loop.run_in_executor(self._executor, run)
        except Exception as failure:
            error = failure if isinstance(failure, EngineError) else EngineError(repr(failure))
            error.__cause__ = failure
        finally:
            self._decoding = False
            for _, future in batch:
                if not future.done() and error is not None:
                    future.set_exception(error)
        self._start_if_ready()


def _settle(future: "asyncio.Future[Completion]", completion: Completion) -> None:
    if not future.done():
        future.set_result(completion)


def records(
    turns: Sequence[Turn], messages: Sequence[Message], tools: ToolSchemas, renderer: Renderer
) -> list[Turn]:
    """Scripted turns with the tokens that sampling the same text would have given."""
    done: list[Turn] = []
    for turn in turns:
        if not done:
            context = renderer.start(messages, tools)
        else:
            context = renderer.bridge(done[-1].results, ended=True)
        ids = renderer.demonstrate(turn.message)
        record = TokenRecord(tuple(context), tuple(ids), (), "")
        done.append(msgspec.structs.replace(turn, record=record))
    return done
