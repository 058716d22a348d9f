"""Guesses change how many tokens come at once, and no token."""

import itertools
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from test_sampler import VOCABULARY, errors, grouped, some_ids, talk

from practicum.core import Stop
from practicum.engines.contract import Prompt
from practicum.engines.kv import Wave
from practicum.engines.sampler import LocalSampler
from practicum.engines.speculation import Lookup
from practicum.engines.trainer import read_weights


def test_what_followed_the_same_tokens_last_time_is_guessed() -> None:
    lookup = Lookup([1, 2, 3, 7, 8, 9, 1, 2, 3, 5, 6, 4, 1, 2], 4)
    assert lookup.guess(9) == []
    lookup.add([3])
    assert lookup.guess(9) == [5, 6]
    assert lookup.guess(1) == [5]
    assert lookup.guess(0) == []


def test_guesses_grow_while_they_are_right() -> None:
    lookup = Lookup([*range(20), 0, 1, 2], 8)
    sizes = []
    for right in (2, 4, 8, 3, 0, 1):
        lookup.learn(right)
        sizes.append(len(lookup.guess(99)))
    assert sizes == [4, 8, 8, 6, 1, 2]


def test_a_guess_may_run_into_what_it_is_a_guess_of() -> None:
    lookup = Lookup([4, 4, 4, 4], 8)
    assert lookup.guess(9) == [4]


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """How many tokens each row was fed, pass by pass."""
    noted: list[torch.Tensor] = []
    forward = Wave.forward

    def noting(wave: Wave, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        noted.append(counts)
        return forward(wave, ids, counts)

    monkeypatch.setattr(Wave, "forward", noting)
    return noted


def both(folder: Path, dtype: str = "float32", **rest: object) -> tuple[LocalSampler, LocalSampler]:
    """A sampler that guesses, and one that does not."""
    weights = read_weights(folder)
    made = []
    for speculate in (5, 0):
        sampler = LocalSampler(folder, dtype=dtype, speculate=speculate, **rest)  # type: ignore[arg-type]
        sampler.load(weights)
        made.append(sampler)
    return made[0], made[1]


def repetitive(rng: random.Random, sizes: list[int]) -> list[Prompt]:
    """Groups of prompts that say the same few things again and again."""
    prompts = []
    for group, size in enumerate(sizes):
        phrase = some_ids(rng, rng.randint(2, 9))
        ids = (phrase * 9)[: rng.randint(12, 40)]
        prompts += [Prompt(ids, f"r{group}-{i}", rng.randint(5, 60)) for i in range(size)]
    rng.shuffle(prompts)
    return prompts


@pytest.mark.parametrize("max_rows", [3, 64])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_tokens_are_the_same_with_guesses_and_without(
    tiny: Path, fed: list[torch.Tensor], max_rows: int, temperature: float
) -> None:
    guessing, plain = both(tiny, stop_ids=range(0, VOCABULARY, 50), max_rows=max_rows)
    rng = random.Random(max_rows)
    prompts = repetitive(rng, [4, 1, 3]) + grouped(rng, [2, 2])
    told = talk(guessing, prompts, 3, temperature=temperature)
    assert max(int(counts.max()) for counts in fed) > 1
    expected = talk(plain, prompts, 3, temperature=temperature)
    for (prompt, said), (same, alone) in zip(
        itertools.chain(*told), itertools.chain(*expected), strict=True
    ):
        assert (prompt, said.ids, said.stop) == (same, alone.ids, alone.stop)
        assert said.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        assert max(errors(tiny, prompt, said)) < 1e-5


@pytest.mark.parametrize("stop", [2, 5])
@pytest.mark.parametrize("temperature", [0, 0.5, 1.0])
def test_tokens_are_the_same_where_many_guesses_are_right(
    sharp: Path, fed: list[torch.Tensor], temperature: float, stop: int
) -> None:
    """Of three tokens a row may say, which it does again and again; in half of the cases one of
    them ends its turn."""
    few = [3, 4, 5]
    banned = [token for token in range(VOCABULARY) if token not in few]
    guessing, plain = both(sharp, stop_ids=[stop])
    rng = random.Random(stop)
    prompts = [Prompt(tuple(rng.choices(few, k=30)), f"n{i}", 5 + 9 * i) for i in range(6)]
    told = talk(guessing, prompts, 3, temperature=temperature, banned=banned)
    passes = len(fed)
    expected = talk(plain, prompts, 3, temperature=temperature, banned=banned)
    for (prompt, said), (same, alone) in zip(
        itertools.chain(*told), itertools.chain(*expected), strict=True
    ):
        assert (prompt, said.ids, said.stop) == (same, alone.ids, alone.stop)
        assert said.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    if stop == 2:
        assert passes < 0.9 * (len(fed) - passes)


def test_bits_do_not_depend_on_how_long_rows_are_busy_between_turns(sharp: Path) -> None:
    guessing, _ = both(sharp, "bfloat16", stop_ids=[2], max_rows=3)
    prompts = repetitive(random.Random(7), [3, 3, 2, 1])
    plain = talk(guessing, prompts, 3, temperature=0.3)
    for seed in (1, 2):
        pick = partial(random.Random(seed).choice, (0, 0, 0.02, 0.1))
        assert talk(guessing, prompts, 3, delay=pick, temperature=0.3) == plain


def test_a_guess_never_reaches_past_the_end_of_a_turn(sharp: Path) -> None:
    guessing, plain = both(sharp, stop_ids=[2])
    ids = (5, 6, 7, 8) * 6
    prompts = [Prompt(ids, str(most), most) for most in range(1, 12)]
    for one, other in zip(guessing.sample(prompts), plain.sample(prompts), strict=True):
        assert one.ids == other.ids
        assert one.stop is Stop.LENGTH


def test_the_experts_of_wrong_guesses_are_not_noted(mixture: Path, fed: list[torch.Tensor]) -> None:
    guessing, plain = both(mixture, stop_ids=[2])
    rng = random.Random(5)
    prompts = [Prompt(tuple(rng.choices([3, 4, 5], k=30)), f"n{i}", 20) for i in range(3)]
    banned = range(6, VOCABULARY)
    one, other = (talk(s, prompts, 2, banned=banned) for s in (guessing, plain))
    assert max(int(counts.max()) for counts in fed) > 1
    for (_, said), (_, alone) in zip(itertools.chain(*one), itertools.chain(*other), strict=True):
        assert (said.ids, said.routes) == (alone.ids, alone.routes)
        assert said.routes
