"""A reward model of the run has its say in the scores of what is played."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from practicum.core import EFFECTS, Episode, Group, Outcome
from practicum.engines.contract import Trainer
from practicum.learn.reward_model import rewards
from practicum.rewards.reward_model import judged


@dataclass
class Judge:
    """Adds a part to the score of each episode; see `rewards.reward_model`."""

    trainer: Trainer  # with the value head of the reward model
    model: str  # its digest
    weight: float
    end: int  # the token that ends what it reads

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the scores that they have now."""
        said = rewards(self.trainer, [e for g in groups for e in g.episodes], self.end)
        numbers = iter(said)
        return [
            msgspec.structs.replace(g, episodes=[self._with(e, next(numbers)) for e in g.episodes])
            for g in groups
        ]

    def _with(self, episode: Episode, reward: float | None) -> Episode:
        before = episode.score
        if before is None or before.value is None or not EFFECTS[episode.outcome].scored:
            return episode
        score = judged(before, reward, model=self.model, weight=self.weight)
        if score.value is None:
            error = f"the reward model {self.model} says {reward}"
            outcome = Outcome.GRADER_FAILED
            return msgspec.structs.replace(episode, score=score, outcome=outcome, error=error)
        return msgspec.structs.replace(episode, score=score)
