"""What tests of stages share: a trainer's settings, who is told, who dies, and what is played."""

from collections.abc import Set

from practicum.core import Episode, Group, Message, Outcome, Score, ScorePart, TokenRecord, Turn
from practicum.engines.contract import Prompt
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import TrainerSettings

FP32 = TrainerSettings(dtype="float32")


class Silent:
    def stage(self, name: str, steps: int | None) -> None: ...
    def step(self, name: str, step: int, values: dict[str, float]) -> None: ...
    def note(self, text: str) -> None: ...


class Killed(Exception):
    """Stands for a death in the middle of a step."""


class Dying(Silent):
    """Dies when it is told of a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, name: str, step: int, values: dict[str, float]) -> None:
        if step == self.after:
            raise Killed


class Practice:
    """Groups sampled by the real sampler: the reward of an episode is how small its tokens are.

    The first episode of each group is our own failure.
    """

    def __init__(self, sampler: LocalSampler, temperature: float = 1.0) -> None:
        self.sampler, self.temperature = sampler, temperature  # of which nothing is recorded
        self.steps: list[int] = []

    def __call__(self, step: int, picks: list, canaries: Set[int] = frozenset()) -> list[Group]:
        self.steps.append(step)
        groups = []
        for slot, ((domain, level), seed) in enumerate(picks):
            ids = (5, 6, 7 + seed % 100)
            keys = [f"rl-{step}-{slot}-task-{i}" for i in range(4)]
            prompts = [Prompt(ids, key, max_tokens=4) for key in keys]
            said = self.sampler.sample(prompts, temperature=self.temperature)
            episodes = [
                Episode(
                    id=key,
                    task="task",
                    domain=domain,
                    level=level,
                    policy="rl",
                    prompt=(Message.of("user", "go"),),
                    turns=(
                        Turn(
                            Message.of("assistant"),
                            record=TokenRecord(ids, c.ids, c.logprobs, c.digest),
                        ),
                    ),
                    events=(),
                    outcome=Outcome.INFRA_FAILED if key.endswith("-0") else Outcome.COMPLETED,
                    score=Score.of(ScorePart("small", sum(t < 256 for t in c.ids) / len(c.ids))),
                )
                for key, c in zip(keys, said, strict=True)
            ]
            groups.append(Group("task", episodes))
        return groups
