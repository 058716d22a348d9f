"""Models of families that have no quick path of their own: what is computed is what transformers
computes, in sampling and in training."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
    StableLmConfig,
)

from practicum.core import EngineError, Sample
from practicum.engines.contract import Prompt
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, TrainerSettings

SIZES = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WIDE = {"intermediate_size": 128, "max_position_embeddings": 256, **IDS}
FAMILIES = {
    "gpt2": GPT2Config(vocab_size=300, n_embd=64, n_layer=2, n_head=4, n_positions=256, **IDS),
    "neox": GPTNeoXConfig(**SIZES, **WIDE, hidden_dropout=0.1, attention_dropout=0.1),
    "opt": OPTConfig(**SIZES, ffn_dim=128, word_embed_proj_dim=64, dropout=0.1, **IDS),
    "phi": PhiConfig(**SIZES, **WIDE, resid_pdrop=0.1),
}
PROMPT = (5, 6, 7, 8)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_sampler_and_trainer_compute_what_transformers_does(
    config: PreTrainedConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    trainer = LocalTrainer(tmp_path, TrainerSettings(dtype="float32"))
    sampler = LocalSampler(tmp_path, stop_ids=[2], dtype="float32")
    sampler.load(trainer.publish())
    said = sampler.sample([Prompt(PROMPT, f"k{n}", max_tokens=9 + n) for n in range(3)])
    for completion in said:
        tokens = (*PROMPT, *completion.ids)
        with torch.no_grad():
            true = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        start = len(PROMPT)
        expected = [true[start - 1 + n, token].item() for n, token in enumerate(completion.ids)]
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)
        weights = tuple(float(n >= start) for n in range(len(tokens)))
        nothing = (0.0,) * len(tokens)
        sample = Sample(tokens, weights, nothing, nothing, nothing)
        (scored,) = trainer.score([sample])
        assert scored.reference[start:] == pytest.approx(expected, abs=1e-5)


def test_layers_that_drop_what_attention_needs_are_refused(tmp_path: Path) -> None:
    config = StableLmConfig(**SIZES, **WIDE, num_key_value_heads=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    sampler = LocalSampler(tmp_path, stop_ids=[2], dtype="float32")
    sampler.load(LocalTrainer(tmp_path, TrainerSettings(dtype="float32")).publish())
    with pytest.raises(EngineError, match="StableLmAttention do not hand on"):
        sampler.sample([Prompt(PROMPT, "k", max_tokens=4)])
