"""A policy that samples tokens, for many episodes at once.

Requests are sampled together once every episode in play has made its first one. From then on each
episode goes on as soon as it asks again; the sampler decides at which step, so that what is
sampled never depends on how fast a box was.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

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
        self._begun = 0
        self._asking: dict[str, asyncio.Future[Completion]] = {}
        self._waiting: dict[str, Prompt] = {}  # for the sampler to start
        self._following: dict[str, Future[Prompt | None]] = {}  # what the sampler waits for
        self._sampling: asyncio.Task[None] | None = None

    async def begin(self, key: str) -> None:
        """Count the episode among those that sampling waits for."""
        self._order[key] = self._begun
        self._begun += 1

    async def end(self, key: str) -> None:
        """Wait for this episode no longer; after the last one the sampler is at rest."""
        self._order.pop(key, None)
        if key in self._following:
            self._following.pop(key).set_result(None)
        self._start_if_ready()
        if not self._order and self._sampling:
            await asyncio.wait([self._sampling])

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
        completion = await self._sample(key, Prompt(ids, noise, room))
        record = TokenRecord(
            tuple(context),
            completion.ids,
            completion.logprobs,
            completion.digest,
            self.temperature,
            _latest(completion, len(ids), len(context) + len(completion.ids) - (not history)),
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
        asking: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._asking[key] = asking
        if key in self._following:
            self._following.pop(key).set_result(prompt)
        else:
            self._waiting[key] = prompt
            self._start_if_ready()
        try:
            return await asking
        finally:  # a cancelled request is asked for no longer
            self._asking.pop(key, None)
            self._waiting.pop(key, None)

    def _start_if_ready(self) -> None:
        ready = self._waiting and self._waiting.keys() >= self._order.keys()
        if not ready or self._sampling:
            return
        keys = sorted(self._waiting, key=lambda key: self._order.get(key, -1))
        prompts = [self._waiting.pop(key) for key in keys]
        self._sampling = asyncio.get_running_loop().create_task(self._run(keys, prompts))

    async def _run(self, keys: list[str], prompts: list[Prompt]) -> None:
        """Let the sampler play these episodes until all of them are over."""
        loop = asyncio.get_running_loop()

        def follow(row: int, completion: Completion) -> Future[Prompt | None]:
            future: Future[Prompt | None] = Future()
            loop.call_soon_threadsafe(self._said, keys[row], completion, future)
            return future

        def run() -> None:
            self.sampler.sample(prompts, temperature=self.temperature, follow=follow)

        try:
            await loop.run_in_executor(self._executor, run)
        except EngineError as error:
            self._fail(keys, error)
        except Exception as failure:
            unknown = EngineError(repr(failure))
            unknown.__cause__ = failure
            self._fail(keys, unknown)
        except asyncio.CancelledError:
            self.sampler.stop()
            raise
        finally:
            self._sampling = None
        self._start_if_ready()

    def _said(self, key: str, completion: Completion, future: Future[Prompt | None]) -> None:
        """Give an episode what was sampled for it, and note that it is waited for."""
        if key in self._order:
            self._following[key] = future
        else:
            future.set_result(None)
        asking = self._asking.get(key)
        if asking is not None and not asking.done():
            asking.set_result(completion)

    def _fail(self, keys: Sequence[str], error: EngineError) -> None:
        for key in keys:
            self._following.pop(key, None)
            asking = self._asking.get(key)
            if asking is not None and not asking.done():
                asking.set_exception(error)


def _latest(completion: Completion, prompt: int, count: int) -> bytes:
    """The experts of the last `count` tokens that were fed, of which there were `prompt` and more.

    The last token of a turn is fed with the next one, so it is counted there.
    """
    size = len(completion.routes) // (prompt + len(completion.ids) - 1)
    return completion.routes[len(completion.routes) - count * size :]


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
