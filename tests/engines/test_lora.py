"""Adapters: merged exactly, exported as a plain model, and the weights beneath them untouched."""

import math
import warnings
from pathlib import Path

import pytest
import torch
from batches import LOSS, batch_of
from plain_model import plain_model
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM

from practicum.core import EngineError
from practicum.engines.lora import LoRASettings
from practicum.engines.trainer import LocalTrainer, TrainerSettings, read_weights
from practicum.learn.aggregate import aggregated

IDS = torch.arange(3, 60)[None]


@pytest.fixture(params=["tied", "untied"])
def base(request: pytest.FixtureRequest, tiny: Path, tmp_path: Path) -> Path:
    """Models whose head is the table of the embeddings, and has one of its own."""
    if request.param == "tied":
        return tiny
    config = AutoConfig.from_pretrained(tiny)
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "untied")
    return tmp_path / "untied"


def adapted(folder: Path, lora: LoRASettings, dtype: str = "float32") -> LocalTrainer:
    """A trainer whose adapters say something, as if they had been trained for long."""
    trainer = LocalTrainer(folder, TrainerSettings.model_validate({"dtype": dtype, "lora": lora}))
    block = torch.empty(len(trainer.block))
    trainer.block.fill(block.normal_(0, 0.1, generator=torch.Generator().manual_seed(0)))
    trainer._give_rounded()
    return trainer


class Causal:
    """The plan of one whole text."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2)


@torch.no_grad()
def logits(trainer: LocalTrainer) -> torch.Tensor:
    """Of the model with its adapters."""
    positions = torch.arange(IDS.shape[1])[None]
    decoder = trainer.model.get_decoder()
    hidden = decoder(input_ids=IDS, position_ids=positions, use_cache=False, plan=Causal())
    return linear(hidden.last_hidden_state, trainer.masters[trainer.head])


@torch.no_grad()
def plain_logits(folder: Path) -> torch.Tensor:
    return plain_model(folder)(IDS).logits


@pytest.mark.parametrize("stabilised", [False, True])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_an_exported_folder_says_what_the_adapted_model_says(
    base: Path, tmp_path: Path, stabilised: bool, targets: str | list[str]
) -> None:
    lora = LoRASettings.model_validate(
        {"rank": 8, "alpha": 16, "rank_stabilised": stabilised, "targets": targets}
    )
    trainer = adapted(base, lora)
    trainer.export(tmp_path / "model")
    own = logits(trainer)
    torch.testing.assert_close(own, plain_logits(tmp_path / "model"), rtol=1e-5, atol=1e-5)
    assert (own - plain_logits(base)).abs().max() > 0.01
    exported = AutoConfig.from_pretrained(tmp_path / "model")
    assert exported.tie_word_embeddings == AutoConfig.from_pretrained(base).tie_word_embeddings
    assert read_weights(tmp_path / "model").digest == trainer.publish().digest


def test_embeddings_of_their_own_can_have_adapters(base: Path, tmp_path: Path) -> None:
    lora = LoRASettings(rank=4, alpha=8, targets=["embed_tokens", "v_proj"])
    if AutoConfig.from_pretrained(base).tie_word_embeddings:
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(EngineError, match="the head's own table"),
        ):
            adapted(base, lora)
        return
    trainer = adapted(base, lora)
    trainer.export(tmp_path / "model")
    torch.testing.assert_close(
        logits(trainer), plain_logits(tmp_path / "model"), rtol=1e-5, atol=1e-5
    )
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    moved = {name for name, grad in trainer.gradient.items() if grad.abs().max() > 0}
    assert any("embed_tokens" in name for name in moved)


@pytest.mark.parametrize(("stabilised", "scale"), [(False, 24 / 8), (True, 24 / math.sqrt(8))])
def test_what_is_merged_is_the_scaled_product_of_the_adapters(
    tiny: Path, stabilised: bool, scale: float
) -> None:
    """W + alpha / r B A, or alpha / sqrt(r)."""
    trainer = adapted(tiny, LoRASettings(rank=8, alpha=24, rank_stabilised=stabilised))
    before, after = read_weights(tiny).tensors, trainer.publish().tensors
    changed = 0
    for name, weight in before.items():
        a, b = (
            trainer.masters.get(name.replace(".weight", f".lora_{x}.default.weight")) for x in "AB"
        )
        if a is None or b is None:
            assert torch.equal(after[name], weight)
            continue
        torch.testing.assert_close(after[name], weight + scale * (b @ a), rtol=1e-6, atol=1e-6)
        changed += 1
    assert changed == 7 * trainer.model.config.num_hidden_layers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merging_changes_nothing(tiny: Path, tmp_path: Path, dtype: str) -> None:
    """Twice is the same, what is trained and what is beneath stay as they were."""
    trainer = adapted(tiny, LoRASettings(rank=8), dtype)
    masters = {name: tensor.clone() for name, tensor in trainer.masters.items()}
    computing = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    published = [trainer.publish() for _ in range(2)]
    for place in ("one", "two"):
        trainer.export(tmp_path / place)
    digests = {weights.digest for weights in published}
    digests |= {read_weights(tmp_path / place).digest for place in ("one", "two")}
    assert len(digests) == 1
    assert all(torch.equal(trainer.masters[name], kept) for name, kept in masters.items())
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(now[name], kept) for name, kept in computing.items())
    base = read_weights(tiny).tensors
    beneath = {n.replace(".base_layer.", "."): t for n, t in masters.items() if "lora_" not in n}
    assert beneath.keys() == base.keys()
    assert all(torch.equal(tensor, base[name]) for name, tensor in beneath.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_publishing_between_two_steps_does_not_show(tiny: Path, tmp_path: Path, dtype: str) -> None:
    found = []
    for looks in (False, True):
        trainer = adapted(tiny, LoRASettings(rank=8), dtype)
        for seed in range(3):
            trainer.forward_backward(aggregated(batch_of(seed)), LOSS)
            if looks:
                trainer.publish()
            trainer.step(1e-2)
            if looks:
                trainer.publish()
                trainer.export(tmp_path / "model")
        found.append(trainer.publish().digest)
    assert found[0] == found[1]


def test_adapters_begin_the_same_in_every_process(tiny: Path) -> None:
    begun = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        trainer = LocalTrainer(tiny, TrainerSettings(lora=LoRASettings()))
        begun.append(trainer.block.part(0, len(trainer.block)))
        assert torch.initial_seed() == seed
    assert torch.equal(*begun)
    assert begun[0].abs().max() > 0
