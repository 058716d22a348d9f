"""What samples begin with alike is computed once, and nothing that is learnt changes by it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from practicum.core import Sample
from practicum.engines import prefix_tree
from practicum.engines.contract import Tokens
from practicum.engines.packing import MULTIPLE, Packed, micro_batches, packed_tokens
from practicum.engines.prefix_tree import trees
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.learn.aggregate import aggregated
from practicum.learn.losses import clip

LOSS = clip(0.2, 0.28)


def sample(tokens: Sequence[int], prompt: int, rng: random.Random) -> Sample:
    """RL weight on all tokens behind the prompt, but for every fourth: an observation."""
    own = tuple(float(t >= prompt and t % 4 != 0) for t in range(len(tokens)))
    advantage = rng.uniform(-1, 1)
    return Sample(
        tokens=tuple(tokens),
        rl_weight=own,
        ce_weight=(0.0,) * len(own),
        advantage=tuple(advantage * x for x in own),
        logprobs=tuple(x * rng.uniform(-7, -5) for x in own),
    )


def branches(seed: int = 0) -> list[Sample]:
    """Attempts that part in the second turn, in the third, or not at all; trained from 20 on."""
    rng = random.Random(seed)

    def words(n: int) -> list[int]:
        return [rng.randrange(3, 512) for _ in range(n)]

    prompt, first, second = words(20), words(25), words(18)
    made = [
        [*prompt, *first, *second, *words(7)],
        [*prompt, *first, *second, *words(3)],
        [*prompt, *first, *second],  # ends where others go on
        [*prompt, *first, *words(30)],
        [*prompt, *first, *words(2)],
        [*prompt, *words(40)],
        words(33),
    ]
    made.append(list(made[0]))  # the same once more
    return [sample(tokens, 20, rng) for tokens in made]


def test_a_turn_that_attempts_share_is_there_once() -> None:
    assert packed_tokens(branches()) == 20 + 25 + 18 + 7 + 3 + 30 + 2 + 40 + 33 + 7  # one repeated
    (lonely, tree) = sorted(trees(branches()), key=lambda tree: len(list(tree.walk())))
    assert (lonely.stop, lonely.children) == (33, [])
    assert [node.stop for node in tree.walk() if node.children] == [20, 45, 63]


def test_the_gradient_of_a_tree_is_the_plain_models(sharp: Path) -> None:
    """To 1e-5 in fp32, weights on the shared tokens included."""
    batch = aggregated(branches())
    model = AutoModelForCausalLM.from_pretrained(sharp, dtype=torch.float32)
    total = torch.zeros(())
    for one in batch:
        tokens = torch.tensor(one.tokens)
        logits = model(tokens[None]).logits[0, :-1].float()
        logprobs = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        weight, advantage, old = (
            torch.tensor(stream[1:]) for stream in (one.rl_weight, one.advantage, one.logprobs)
        )
        losses, _ = LOSS(Tokens(logprobs, old, advantage, torch.zeros(len(old)).long(), weight))
        total = total + (losses * weight).sum()
    total.backward()
    for budget in (1, 100, 100_000):
        trainer = LocalTrainer(sharp, TrainerSettings(dtype="float32", micro_batch_tokens=budget))
        metrics = trainer.forward_backward(batch, LOSS)
        assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-5)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(trainer.gradient[name], parameter.grad, rtol=1e-4, atol=1e-5)


tokens_of_samples = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=9
)


@settings(max_examples=200, deadline=None)
@given(tokens_of_samples, st.integers(1, 30), st.integers(1, 4))
def test_every_token_sees_what_it_would_see_alone(
    all_tokens: list[list[int]], budget: int, least: int
) -> None:
    """For any samples: each pack, read along the keys that a token sees, gives its sample back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_tree, "LEAST_SHARED", least)
        rng = random.Random(0)
        samples = [sample(tokens, 1, rng) for tokens in all_tokens]
        packs = micro_batches(samples, budget)
        assert sorted(s.tokens for p in packs for s in p) == sorted(s.tokens for s in samples)
        for pack in packs:
            packed = Packed(pack)
            ids = packed.ids[0].tolist()
            seen: dict[int, list[int]] = {}
            for tile in packed._tiles:
                before = [at for part in tile.prefix for at in range(part.start, part.stop)]
                for index, valid in zip(tile.index, tile.valid, strict=True):
                    own = index[valid].tolist()
                    for n, at in enumerate(own):
                        assert at not in seen
                        seen[at] = [*before, *own[: n + 1]]
            used = packed_tokens(pack)
            assert sorted(seen) == list(range(used))
            positions = [len(seen[at]) - 1 for at in range(used)]
            assert positions == packed.positions[0, :used].tolist()
            assert used <= len(ids) < used + MULTIPLE
            assert len(ids) % MULTIPLE == len(packed.source) % MULTIPLE == 0
            for (one, t), row in zip(packed.places, packed.row.tolist(), strict=True):
                source = int(packed.source[row])
                assert [ids[at] for at in seen[source]] == list(one.tokens[:t])
                assert int(packed.target[row]) == one.tokens[t]
