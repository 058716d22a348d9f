"""The experts that sampling used are noted token by token, and training computes the same ones."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from batches import LOSS, batch_of
from transformers import AutoModelForCausalLM

from practicum.core import Message, Sample, TokenRecord, Turn
from practicum.engines.contract import Completion, Prompt
from practicum.engines.policy import SamplerPolicy
from practicum.engines.routing import packed_routes, unpacked_routes
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, TrainerSettings, read_weights
from practicum.learn.aggregate import aggregated
from practicum.models.render import Renderer

LAYERS, K = 2, 2
FP32 = TrainerSettings(dtype="float32")


def opened(folder: Path, dtype: str = "float32", **options: int) -> LocalSampler:
    sampler = LocalSampler(folder, stop_ids=[2], dtype=dtype, **options)
    sampler.load(read_weights(folder))
    return sampler


def plain_routes(folder: Path, tokens: Sequence[int]) -> np.ndarray:
    """Where transformers itself sends each token, [T, layers, k], each token's experts in order."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)]), output_router_logits=True).router_logits
    chosen = [layer.topk(K, -1).indices for layer in logits]
    return np.sort(torch.stack(chosen, 1).numpy(), -1)


def test_the_experts_of_every_token_are_noted(mixture: Path) -> None:
    """Over groups, turns, and rows that wait for a seat."""
    sampler = opened(mixture, max_rows=3)
    starts = [(5, 6, 7, 8), (5, 6, 7, 8), (9, 10), (11,) * 20]
    turns: dict[int, list[tuple[Prompt, Completion]]] = {i: [] for i in range(len(starts))}
    prompts = [Prompt(ids, str(i), 6) for i, ids in enumerate(starts)]

    def follow(row: int, said: Completion) -> Future[Prompt | None]:
        asked = turns[row][-1][0] if turns[row] else prompts[row]
        if turns[row]:
            asked = Prompt((*asked.ids, *turns[row][-1][1].ids, 40, 41), f"{row}+", 6)
        turns[row].append((asked, said))
        future: Future[Prompt | None] = Future()
        done = len(turns[row]) == 2
        future.set_result(None if done else Prompt((*asked.ids, *said.ids, 40, 41), f"{row}+", 6))
        return future

    sampler.sample(prompts, follow=follow)
    for said in turns.values():
        assert len(said) == 2
        for prompt, completion in said:
            fed = (*prompt.ids, *completion.ids[:-1])
            noted = unpacked_routes(completion.routes, LAYERS, K)
            assert np.array_equal(np.sort(noted, -1), plain_routes(mixture, fed))


async def test_an_episodes_experts_come_turn_by_turn(mixture: Path) -> None:
    renderer = Renderer.for_folder(mixture)
    policy = SamplerPolicy("mixture", opened(mixture), renderer)
    history: list[Turn] = []
    messages = [Message.of("user", "Sort the lines.")]
    await policy.begin("e")
    for _ in range(3):
        turn = await policy.respond(messages, [], history=history, key="e", max_tokens=9)
        result = Message.of("user", "exit code 0")
        history.append(msgspec.structs.replace(turn, results=(result,)))
    await policy.end("e")
    records = [turn.record for turn in history if turn.record]
    tokens = [token for r in records for token in (*r.context, *r.ids)]
    noted = unpacked_routes(b"".join(r.routes for r in records), LAYERS, K)
    assert np.array_equal(np.sort(noted, -1), plain_routes(mixture, tokens[:-1]))


def routed(seed: int = 0) -> list[Sample]:
    """A batch whose tokens, but for the last three of each, went to any two experts."""
    rng = np.random.default_rng(seed)
    by_prompt: dict[tuple[int, ...], np.ndarray] = {}
    made = []
    for one in batch_of():
        n = len(one.tokens) - 3
        routes = np.stack([[rng.permutation(4)[:K] for _ in range(LAYERS)] for _ in range(n)])
        shared = by_prompt.setdefault(one.tokens[:16], routes[:16])
        routes[: len(shared)] = shared[:n]
        made.append(msgspec.structs.replace(one, routes=packed_routes(torch.from_numpy(routes))))
    return made


@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_the_gradient_is_that_of_the_experts_that_were_noted(
    mixture: Path, activations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    batch = aggregated(routed())
    settings = TrainerSettings(dtype="float32", micro_batch_tokens=60, activations=activations)
    trainer = LocalTrainer(mixture, settings)
    metrics = trainer.forward_backward(batch, LOSS)

    model = AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)
    layers = {
        m: i for i, m in enumerate(x for x in model.modules() if type(x) is Qwen3MoeTopKRouter)
    }
    known = np.zeros((0, LAYERS, K))
    original = Qwen3MoeTopKRouter.forward

    def forced(router: torch.nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, scores, chosen = original(router, hidden)
        if router in layers:
            chosen = chosen.clone()
            chosen[: len(known)] = torch.tensor(known[:, layers[router]]).long()
            weights = logits.softmax(-1)[torch.arange(len(chosen))[:, None], chosen]
            scores = weights / weights.sum(-1, keepdim=True)
        return logits, scores, chosen

    monkeypatch.setattr(Qwen3MoeTopKRouter, "forward", forced)
    total = torch.zeros(())
    for one in batch:
        known = unpacked_routes(one.routes, LAYERS, K)
        tokens = torch.tensor(one.tokens)
        logits = model(tokens[None]).logits[0, :-1].float() / one.temperature
        logprobs = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        rl, ce, advantage, old = (
            torch.tensor(stream[1:])
            for stream in (one.rl_weight, one.ce_weight, one.advantage, one.logprobs)
        )
        ratio = (logprobs - old).exp()
        losses = torch.maximum(-ratio * advantage, -ratio.clamp(0.8, 1.28) * advantage)
        total = total + (losses * rl).sum() - (logprobs * ce).sum()
    total.backward()
    assert metrics["loss"] + metrics["nll"] == pytest.approx(float(total.detach()), rel=1e-4)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(trainer.gradient[name], parameter.grad, rtol=1e-3, atol=1e-5)
    other = LocalTrainer(mixture, settings)
    without = [msgspec.structs.replace(s, routes=b"") for s in batch]
    assert other.forward_backward(without, LOSS)["loss"] != pytest.approx(metrics["loss"], rel=1e-3)


def test_replay_brings_trainer_and_sampler_together(mixture: Path) -> None:
    """In bf16 the sampler decides near ties in another way; its numbers are met anyway."""
    sampler = opened(mixture, "bfloat16")
    prompts = [Prompt(tuple(range(3 + i, 40 + i)), str(i), 24) for i in range(24)]
    done = sampler.sample(prompts)
    samples = []
    for prompt, said in zip(prompts, done, strict=True):
        before, new = (0.0,) * len(prompt.ids), len(said.ids)
        samples.append(
            Sample(
                tokens=prompt.ids + said.ids,
                rl_weight=before + (1.0,) * new,
                ce_weight=before + (0.0,) * new,
                advantage=before + (0.0,) * new,
                logprobs=before + said.logprobs,
                routes=said.routes,
            )
        )

    def gap(batch: Sequence[Sample]) -> float:
        scored = LocalTrainer(mixture, FP32).score(batch)
        off = [abs(a - b) for s in scored for a, b in zip(s.reference, s.logprobs, strict=True)]
        return sum(off)

    without = [msgspec.structs.replace(s, routes=b"") for s in samples]
    assert gap(samples) < 0.7 * gap(without)


def test_routes_survive_a_record() -> None:
    record = TokenRecord((1, 2), (3,), (-1.0,), "d", routes=bytes(range(8)))
    assert msgspec.json.decode(msgspec.json.encode(record), type=TokenRecord) == record
