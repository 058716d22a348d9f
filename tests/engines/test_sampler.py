"""The sampler's tokens and log-probabilities are those of the plain model, however it is asked."""

import random
from pathlib import Path

import msgspec
import pytest
import torch
from plain_model import plain_logprobs

from practicum.core import EngineError, Stop
from practicum.engines.contract import Completion, Prompt, Weights
from practicum.engines.sampler import LocalSampler, uniform
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
        prompts += [
            Prompt(ids, f"noise-{group}-{i}", f"row-{group}-{i}", rng.randint(1, 9))
            for i in range(size)
        ]
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


def continued(rng: random.Random, prompts: list[Prompt], said: list[Completion]) -> list[Prompt]:
    """The next turn of every row: its tokens so far and an observation of some length."""
    return [
        Prompt(
            (*prompt.ids, *completion.ids, *some_ids(rng, rng.randint(1, 12))),
            f"{prompt.noise}+",
            prompt.row,
            rng.randint(1, 9),
        )
        for prompt, completion in zip(prompts, said, strict=True)
    ]


@pytest.mark.parametrize("max_rows", [3, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_the_plain_model_over_turns(
    sharp: Path, max_rows: int, temperature: float
) -> None:
    rng = random.Random(max_rows)
    sampler = LocalSampler(sharp, stop_ids=[2], dtype="float32", max_rows=max_rows)
    sampler.load(read_weights(sharp))
    prompts = grouped(rng, [4, 1, 3, 2])
    for _ in range(3):
        said = sampler.sample(prompts, temperature=temperature)
        assert all(len(c.ids) <= p.max_tokens for p, c in zip(prompts, said, strict=True))
        worst = max(
            error
            for prompt, completion in zip(prompts, said, strict=True)
            for error in errors(sharp, prompt, completion, temperature)
        )
        assert worst < 1e-4
        prompts = continued(rng, prompts, said)
        prompts = [p for p in prompts if rng.random() < 0.8] + grouped(rng, [2])  # some end
        prompts = [msgspec.structs.replace(p, row=f"{p.row}.") for p in prompts[:1]] + prompts[1:]


def test_the_draw_follows_the_probabilities(sharp: Path, sampler: LocalSampler) -> None:
    """Inverse transform: the token whose share of the cumulative mass holds the uniform number."""
    ids = some_ids(random.Random(5), 20)
    prompts = [Prompt(ids, f"n{i}", max_tokens=1) for i in range(40)]
    mass = plain_logprobs(sharp, ids)[-1].exp().cumsum(0)
    for prompt, completion in zip(prompts, sampler.sample(prompts), strict=True):
        u, token = uniform(prompt.noise, 0), completion.ids[0]
        before = float(mass[token - 1]) if token else 0.0
        assert before - 1e-5 <= u <= float(mass[token]) + 1e-5
    assert len({c.ids for c in sampler.sample(prompts)}) > 5


def test_equal_calls_give_equal_bits(sharp: Path) -> None:
    def talk() -> list[list[Completion]]:
        rng = random.Random(7)
        sampler = LocalSampler(sharp, stop_ids=[2], max_rows=5)  # bf16
        sampler.load(read_weights(sharp))
        prompts = grouped(rng, [3, 3, 2])
        turns = []
        for _ in range(3):
            turns.append(sampler.sample(prompts))
            prompts = continued(rng, prompts, turns[-1])
        return turns

    assert talk() == talk()


def test_the_order_and_the_company_of_requests_do_not_change_tokens(sampler: LocalSampler) -> None:
    prompts = grouped(random.Random(11), [3, 2, 4])
    together = dict(zip((p.noise for p in prompts), sampler.sample(prompts), strict=True))
    sampler.release(p.row for p in prompts)
    backwards = dict(
        zip((p.noise for p in prompts[::-1]), sampler.sample(prompts[::-1]), strict=True)
    )
    sampler.release(p.row for p in prompts)
    alone = {p.noise: sampler.sample([p])[0] for p in prompts}
    for noise, completion in together.items():
        for other in (backwards[noise], alone[noise]):
            assert other.ids == completion.ids
            assert other.logprobs == pytest.approx(completion.logprobs, abs=1e-4)


def test_a_released_row_is_computed_again_with_the_same_result(sampler: LocalSampler) -> None:
    rng = random.Random(13)
    prompts = grouped(rng, [3, 2])
    following = continued(rng, prompts, sampler.sample(prompts))
    kept = sampler.sample(following)
    sampler.release(p.row for p in following)
    fresh = sampler.sample(following)
    assert [c.ids for c in fresh] == [c.ids for c in kept]
    for one, other in zip(kept, fresh, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_row_that_says_something_else_than_before_is_not_continued(
    sharp: Path, sampler: LocalSampler
) -> None:
    rng = random.Random(17)
    (first,) = grouped(rng, [1])
    sampler.sample([first])
    other = msgspec.structs.replace(first, ids=(*some_ids(rng, 3), *first.ids, *some_ids(rng, 9)))
    shorter = msgspec.structs.replace(first, ids=first.ids[: max(1, len(first.ids) - 2)])
    for prompt in (other, shorter, first):
        assert max(errors(sharp, prompt, sampler.sample([prompt])[0])) < 1e-4


def test_new_weights_drop_what_older_ones_computed(
    tiny: Path, sharp: Path, sampler: LocalSampler
) -> None:
    rng = random.Random(19)
    prompts = grouped(rng, [4, 2])
    following = continued(rng, prompts, sampler.sample(prompts))
    weights = read_weights(tiny)
    sampler.load(weights)
    for prompt, completion in zip(following, sampler.sample(following), strict=True):
        assert completion.digest == weights.digest
        assert max(errors(tiny, prompt, completion)) < 1e-4
    sampler.load(read_weights(sharp))
    for prompt, completion in zip(following, sampler.sample(following), strict=True):
        assert max(errors(sharp, prompt, completion)) < 1e-4


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


def test_each_completion_is_told_once_when_it_ends(sampler: LocalSampler) -> None:
    sampler.max_rows = 4
    prompts = grouped(random.Random(37), [4, 3])
    told: dict[int, Completion] = {}
    order: list[int] = []

    def on_done(index: int, completion: Completion) -> None:
        assert index not in told
        told[index] = completion
        order.append(index)

    said = sampler.sample(prompts, on_done=on_done)
    assert [told[i] for i in range(len(prompts))] == said
    lengths = [len(told[i].ids) for i in order if i < 4]
    assert lengths == sorted(lengths)  # the short ones of a batch first


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
