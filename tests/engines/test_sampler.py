"""The sampler's tokens and log-probabilities are those of the plain model, however it is asked."""

import itertools
import math
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from plain_model import plain_logprobs

from practicum.core import EngineError, Stop
from practicum.engines.contract import Completion, Prompt, Weights
from practicum.engines.kv import Wave
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import read_weights
from practicum.models.digest import digest

VOCABULARY = 512


def some_ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))


def grouped(rng: random.Random, sizes: list[int], *, longest: int = 40) -> list[Prompt]:
    """Groups of equal prompts of mixed lengths, in mixed order."""
    prompts = []
    for group, size in enumerate(sizes):
        ids = some_ids(rng, rng.randint(1, longest))
        prompts += [Prompt(ids, f"noise-{group}-{i}", rng.randint(1, 9)) for i in range(size)]
    rng.shuffle(prompts)
    return prompts


def errors(
    folder: Path, prompt: Prompt, completion: Completion, temperature: float = 1.0
) -> list[float]:
    """How far each log-probability is from the plain model's."""
    logprobs = plain_logprobs(folder, (*prompt.ids, *completion.ids), temperature)
    return [
        abs(float(logprobs[len(prompt.ids) - 1 + at, token]) - said)
        for at, (token, said) in enumerate(zip(completion.ids, completion.logprobs, strict=True))
    ]


def talk(
    sampler: LocalSampler,
    prompts: list[Prompt],
    turns: int,
    *,
    delay: Callable[[], float] | None = None,
    **rest: Any,
) -> list[list[tuple[Prompt, Completion]]]:
    """What each row asked and was told over some turns, with observations of some length between.

    Every third row is over one turn earlier. With `delay` each observation takes so many seconds.
    """
    told: list[list[tuple[Prompt, Completion]]] = [[] for _ in prompts]
    asked = list(prompts)

    def follow(row: int, said: Completion) -> Future[Prompt | None]:
        prompt, future = asked[row], Future()  # type: ignore[var-annotated]
        told[row].append((prompt, said))
        if len(told[row]) < turns - (row % 3 == 0):
            rng = random.Random(prompt.noise)
            ids = (*prompt.ids, *said.ids, *some_ids(rng, rng.randint(1, 12)))
            asked[row] = Prompt(ids, f"{prompt.noise}+", rng.randint(1, 9))
            answer: Prompt | None = asked[row]
        else:
            answer = None
        if delay is None:
            future.set_result(answer)
        else:
            threading.Timer(delay(), future.set_result, [answer]).start()
        return future

    last = sampler.sample(prompts, follow=follow, **rest)
    assert last == [row[-1][1] for row in told]
    return told


@pytest.mark.parametrize("max_rows", [3, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_the_plain_model_over_turns(
    sharp: Path, max_rows: int, temperature: float
) -> None:
    rng = random.Random(max_rows)
    sampler = LocalSampler(sharp, stop_ids=[2], dtype="float32", max_rows=max_rows)
    sampler.load(read_weights(sharp))
    told = talk(sampler, grouped(rng, [4, 1, 3, 2]), 3, temperature=temperature)
    assert sorted(map(len, told)) == [2, 2, 2, 2, 3, 3, 3, 3, 3, 3]
    for prompt, said in itertools.chain(*told):
        assert len(said.ids) <= prompt.max_tokens
        assert max(errors(sharp, prompt, said, temperature)) < 1e-4


def test_rows_that_end_one_by_one_leave_the_others_as_they_were(
    sharp: Path, sampler: LocalSampler
) -> None:
    """Few of many end at a time, and come back while their old places are still in the batch."""
    rng = random.Random(5)
    prompts = [Prompt(some_ids(rng, 12), f"n{i}", 16 * i + 4) for i in range(6)]
    for row in talk(sampler, prompts, 3):
        for prompt, said in row:
            assert max(errors(sharp, prompt, said)) < 1e-4


def test_bits_do_not_depend_on_how_long_rows_are_busy_between_turns(sharp: Path) -> None:
    sampler = LocalSampler(sharp, stop_ids=[2], max_rows=3)  # bf16
    sampler.load(read_weights(sharp))
    prompts = grouped(random.Random(7), [3, 3, 2, 1])
    plain = talk(sampler, prompts, 3)
    for seed in (1, 2):
        pick = partial(random.Random(seed).choice, (0, 0, 0.02, 0.1))
        assert talk(sampler, prompts, 3, delay=pick) == plain


def test_the_order_and_the_company_of_requests_do_not_change_tokens(sampler: LocalSampler) -> None:
    prompts = grouped(random.Random(11), [3, 2, 4])
    together = dict(zip((p.noise for p in prompts), sampler.sample(prompts), strict=True))
    backwards = dict(
        zip((p.noise for p in prompts[::-1]), sampler.sample(prompts[::-1]), strict=True)
    )
    alone = {p.noise: sampler.sample([p])[0] for p in prompts}
    for noise, completion in together.items():
        for other in (backwards[noise], alone[noise]):
            assert other.ids == completion.ids
            assert other.logprobs == pytest.approx(completion.logprobs, abs=1e-4)


def test_a_row_that_goes_on_is_the_same_as_one_that_begins_there(sampler: LocalSampler) -> None:
    told = talk(sampler, grouped(random.Random(13), [3, 2]), 3)
    prompts = [prompt for row in told for prompt, _ in row[1:]]
    said = [said for row in told for _, said in row[1:]]
    for one, other in zip(said, sampler.sample(prompts), strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_row_that_says_something_else_than_before_is_not_continued(
    sharp: Path, sampler: LocalSampler
) -> None:
    rng = random.Random(17)
    (first,) = grouped(rng, [1])
    other = msgspec.structs.replace(first, ids=(*some_ids(rng, 3), *first.ids, *some_ids(rng, 9)))
    shorter = msgspec.structs.replace(first, ids=first.ids[: max(1, len(first.ids) - 2)])
    asked = [first, other, shorter, first]
    told: list[Completion] = []

    def follow(row: int, said: Completion) -> Future[Prompt | None]:
        told.append(said)
        future: Future[Prompt | None] = Future()
        future.set_result(asked[len(told)] if len(told) < len(asked) else None)
        return future

    sampler.sample([first], follow=follow)
    for prompt, said in zip(asked, told, strict=True):
        assert max(errors(sharp, prompt, said)) < 1e-4


def test_new_weights_are_the_ones_that_speak(
    tiny: Path, sharp: Path, sampler: LocalSampler
) -> None:
    prompts = grouped(random.Random(19), [4, 2])
    for folder in (tiny, sharp):
        weights = read_weights(folder)
        sampler.load(weights)
        for prompt, said in itertools.chain(*talk(sampler, prompts, 2)):
            assert said.digest == weights.digest
            assert max(errors(folder, prompt, said)) < 1e-4


def test_rows_wait_for_room_and_equal_prompts_are_computed_once(
    sampler: LocalSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most `max_rows` rows a stream are fed at once, and each distinct prompt once a stream."""
    sampler.max_rows = 3
    fed: list[tuple[int, int]] = []
    forward = Wave.forward

    def noted(wave: Wave, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        fed.append((len(wave.slots), int(counts.sum())))
        assert len(counts) <= 3
        return forward(wave, ids, counts)

    monkeypatch.setattr(Wave, "forward", noted)
    ids = some_ids(random.Random(3), 30)
    sampler.sample([Prompt(ids, f"n{i}", 5) for i in range(12)])
    computed = [count for slots, count in fed if not slots]
    assert computed == [30] * min(2, torch.get_num_threads())


def test_what_is_being_sampled_can_be_given_up(sampler: LocalSampler) -> None:
    """Also while a row is waited for."""

    def follow(row: int, said: Completion) -> Future[Prompt | None]:
        threading.Timer(0.1, sampler.stop).start()
        return Future()  # which nobody ever answers

    with pytest.raises(EngineError, match="given up"):
        sampler.sample([Prompt((5, 6), "n", 2)], follow=follow)
    assert len(sampler.sample([Prompt((5, 6), "n", 2)])) == 1


def test_temperature_zero_takes_the_likeliest_token(sharp: Path, sampler: LocalSampler) -> None:
    prompts = grouped(random.Random(23), [2, 1, 1])
    for prompt, completion in zip(prompts, sampler.sample(prompts, temperature=0), strict=True):
        logprobs = plain_logprobs(sharp, (*prompt.ids, *completion.ids))
        best = logprobs[len(prompt.ids) - 1 : -1].argmax(-1).tolist()
        assert list(completion.ids) == best
        assert max(errors(sharp, prompt, completion)) < 1e-4  # those of temperature 1


def test_banned_tokens_are_never_drawn_and_lose_their_mass(
    sharp: Path, sampler: LocalSampler
) -> None:
    ids = some_ids(random.Random(29), 15)
    prompts = [Prompt(ids, f"n{i}", max_tokens=1) for i in range(30)]
    likely = {c.ids[0] for c in sampler.sample(prompts)}
    logprobs = plain_logprobs(sharp, ids)[-1]
    logprobs[list(likely)] = float("-inf")
    logprobs = logprobs.log_softmax(-1)
    for completion in sampler.sample(prompts, banned=list(likely)):
        assert completion.ids[0] not in likely
        assert completion.logprobs[0] == pytest.approx(float(logprobs[completion.ids[0]]), abs=1e-4)


def test_a_stop_token_ends_a_completion_and_is_part_of_it(sharp: Path) -> None:
    prompts = grouped(random.Random(31), [5, 3])
    stops = set(range(0, VOCABULARY, 2))
    sampler = LocalSampler(sharp, stop_ids=stops, dtype="float32")
    sampler.load(read_weights(sharp))
    said = sampler.sample(prompts)
    assert {c.stop for c in said} == {Stop.END, Stop.LENGTH}
    for prompt, completion in zip(prompts, said, strict=True):
        assert not stops.intersection(completion.ids[:-1])
        if completion.stop is Stop.END:
            assert completion.ids[-1] in stops
        else:
            assert completion.ids[-1] not in stops
            assert len(completion.ids) == prompt.max_tokens


def test_without_weights_or_with_those_of_another_model_there_is_no_sample(
    tiny: Path, sampler: LocalSampler
) -> None:
    empty = LocalSampler(tiny, stop_ids=[2])
    with pytest.raises(EngineError, match=r"load\(trainer\.publish\(\)\)"):
        empty.sample([Prompt((5,), "n")])
    with pytest.raises(EngineError, match="do not fit"):
        sampler.load(Weights("x", {"strange.weight": torch.zeros(2, 2)}))


def test_the_digest_names_the_fp32_weights_whatever_the_sampler_casts_to(sharp: Path) -> None:
    weights = read_weights(sharp)
    sampler = LocalSampler(sharp, stop_ids=[2], dtype="bfloat16")
    sampler.load(weights)
    assert sampler.sample([Prompt((5, 6), "n", max_tokens=1)])[0].digest == weights.digest
    nudged = {name: tensor.clone() for name, tensor in weights.tensors.items()}
    name = next(iter(nudged))
    nudged[name].view(-1)[-1] *= 1 + 1e-6
    assert torch.equal(nudged[name].bfloat16(), weights.tensors[name].bfloat16())
    assert digest(nudged) != weights.digest == digest(weights.tensors)


def test_bf16_sampling_stays_close_to_the_plain_model(sharp: Path) -> None:
    prompts = grouped(random.Random(41), [4, 4])
    sampler = LocalSampler(sharp, stop_ids=[2])
    sampler.load(read_weights(sharp))
    said = sampler.sample(prompts)
    every = [e for p, c in zip(prompts, said, strict=True) for e in errors(sharp, p, c)]
    assert sum(every) / len(every) < 0.1


def test_tokens_come_as_often_as_their_probability_says(sampler: LocalSampler) -> None:
    """Over the edges of the blocks in which the vocabulary is drawn, too."""
    rng = random.Random(43)
    ids = some_ids(rng, 15)
    prompts = [Prompt(ids, f"n{i}", 1) for i in range(4000)]
    sampler.max_rows = 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("practicum.engines.sampler.BLOCK", 100)  # of 512
        said = sampler.sample(prompts)
    counts = Counter(completion.ids[0] for completion in said)
    lps = {c.ids[0]: c.logprobs[0] for c in said}
    for token, logprob in lps.items():
        p = math.exp(logprob)
        assert abs(counts[token] / 4000 - p) < 5 * math.sqrt(p / 4000) + 1e-3
    assert sum(math.exp(lp) for lp in lps.values()) > 0.9
    assert len({token // 100 for token in lps}) == 6
