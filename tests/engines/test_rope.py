"""Scaled positions are the papers', transformers' own, and the same in sampler and trainer."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_model import plain_logprobs
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from practicum.core import EngineError, Sample
from practicum.engines.attention import load_model
from practicum.engines.contract import Prompt
from practicum.engines.rope import RopeSettings
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, TrainerSettings, read_weights

LIMIT, DIM, BASE = 32, 16, 10_000.0  # of the tiny model, as `short` has it
SETTINGS = {kind: RopeSettings(rope_type=kind, factor=4) for kind in ("linear", "ntk", "yarn")}
FP32 = TrainerSettings(dtype="float32")


@pytest.fixture
def short(sharp: Path, tmp_path: Path) -> Path:
    """A model with so small a limit that tests can pass it."""
    folder = tmp_path / "short"
    shutil.copytree(sharp, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LIMIT}))
    return folder


def rotary(settings: RopeSettings, **config: Any) -> LlamaRotaryEmbedding:
    """The frequencies of a model of 512 positions with heads of 16, scaled."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 512}
    made = LlamaConfig(**sizes | config)
    settings.scale(made)
    return LlamaRotaryEmbedding(made)


def test_linear_divides_every_frequency() -> None:
    found = rotary(RopeSettings(rope_type="linear", factor=4))
    wanted = [BASE ** (-2 * i / DIM) / 4 for i in range(DIM // 2)]
    assert found.inv_freq.tolist() == pytest.approx(wanted, rel=1e-5)
    assert found.attention_scaling == 1.0


def test_ntk_keeps_the_fastest_and_divides_the_slowest() -> None:
    """b' = b s^(d / (d - 2)), so that the last frequency b'^(-(d - 2) / d) is divided by s."""
    found = rotary(RopeSettings(rope_type="ntk", factor=4)).inv_freq.tolist()
    plain = [BASE ** (-2 * i / DIM) for i in range(DIM // 2)]
    assert found[0] == plain[0] == 1.0
    assert found[-1] == pytest.approx(plain[-1] / 4, rel=1e-5)
    assert found == pytest.approx([f * 4 ** (-2 * i / (DIM - 2)) for i, f in enumerate(plain)])


def test_ntk_is_transformers_dynamic_scaling_held_at_the_new_limit() -> None:
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, max_position_embeddings=512)
    config.rope_parameters |= {"rope_type": "dynamic", "factor": 1.0}
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=4 * 512)
    ours = rotary(RopeSettings(rope_type="ntk", factor=4)).inv_freq
    torch.testing.assert_close(ours, theirs)


def test_yarn_keeps_fast_turns_divides_slow_ones_and_goes_over_in_between() -> None:
    """Within 512 positions a frequency f makes 512 f / (2 pi) turns: kept from 32 on, divided to 1.

    Over between the dimensions where those are reached, evenly, as in the authors' own code.
    """
    found = rotary(RopeSettings(factor=4))
    plain = [BASE ** (-2 * i / DIM) for i in range(DIM // 2)]
    turns = [512 * f / (2 * math.pi) for f in plain]
    assert turns[0] > 32 > turns[1] > turns[3] > 1 > turns[4]

    def dimension(turns: float) -> float:
        return DIM * math.log(512 / (2 * math.pi * turns)) / (2 * math.log(BASE))

    first, last = math.floor(dimension(32)), math.ceil(dimension(1))
    assert (first, last) == (0, 4)
    parts = [min(max((i - first) / (last - first), 0), 1) for i in range(DIM // 2)]
    wanted = [f * (1 - part) + f / 4 * part for f, part in zip(plain, parts, strict=True)]
    assert found.inv_freq.tolist() == pytest.approx(wanted, rel=1e-5)
    assert found.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)


def test_yarns_own_settings_count() -> None:
    plain = rotary(RopeSettings(factor=4))
    other = rotary(RopeSettings(factor=4, beta_fast=4, beta_slow=2, attention_factor=1.5))
    assert other.attention_scaling == 1.5
    assert other.inv_freq.tolist() != plain.inv_freq.tolist()


@pytest.mark.parametrize("kind", SETTINGS)
def test_sampler_and_trainer_agree_beyond_the_models_limit(
    kind: str, short: Path, tmp_path: Path
) -> None:
    """And with what transformers alone computes from the exported folder."""
    rope = SETTINGS[kind]
    trainer = LocalTrainer(short, FP32, rope=rope)
    sampler = LocalSampler(short, stop_ids=[], dtype="float32", rope=rope)
    sampler.load(trainer.publish())
    random = torch.Generator().manual_seed(0)
    prompts = [
        Prompt(tuple(torch.randint(3, 512, (n,), generator=random).tolist()), f"{n}", 40)
        for n in (60, 7, 88)
    ]
    done = sampler.sample(prompts)
    samples = []
    for prompt, said in zip(prompts, done, strict=True):
        own = (0.0,) * len(prompt.ids) + (1.0,) * len(said.ids)
        zeros = (0.0,) * len(own)
        samples.append(Sample(prompt.ids + said.ids, own, zeros, zeros, zeros))
    trainer.export(tmp_path / "exported")
    for prompt, said, scored in zip(prompts, done, trainer.score(samples), strict=True):
        start = len(prompt.ids)
        assert scored.reference[start:] == pytest.approx(said.logprobs, abs=2e-4)
        for folder, same in ((tmp_path / "exported", True), (short, False)):
            theirs = plain_logprobs(folder, scored.tokens)[start - 1 : -1]
            chosen = theirs.gather(1, torch.tensor(said.ids)[:, None])[:, 0]
            off = (chosen - torch.tensor(said.logprobs)).abs().max()
            assert (off < 2e-4) == same


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_exported_folder_is_scaled_once(kind: str, short: Path, tmp_path: Path) -> None:
    rope = SETTINGS[kind]
    LocalTrainer(short, FP32, rope=rope).export(tmp_path / "exported")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert theirs.config.max_position_embeddings == 4 * LIMIT
    again = load_model(tmp_path / "exported", torch.float32, rope=rope)
    plain = load_model(tmp_path / "exported", torch.float32)
    for model in (again, plain):
        assert model.config.max_position_embeddings == 4 * LIMIT
        assert torch.equal(model.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)
        scaling = theirs.model.rotary_emb.attention_scaling
        assert model.model.rotary_emb.attention_scaling == scaling
    with pytest.raises(EngineError, match="cannot be scaled"):
        load_model(tmp_path / "exported", torch.float32, rope=RopeSettings(factor=3))


def test_the_original_limit_can_be_said(short: Path) -> None:
    """A model whose configuration promises more than it was trained for."""
    config = AutoConfig.from_pretrained(short)
    RopeSettings(factor=2, original_max_position_embeddings=20).scale(config)
    assert config.max_position_embeddings == 40
    assert config.rope_parameters["original_max_position_embeddings"] == 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"factor": 1.0}, "greater than 1"),
        ({"rope_type": "dynamic", "factor": 2}, "'linear', 'ntk' or 'yarn'"),
        ({"rope_type": "ntk", "factor": 2, "beta_fast": 16}, "only rope_type 'yarn' has beta_fast"),
        ({"factor": 2, "beta_fast": 1, "beta_slow": 2}, "beta_fast must be more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RopeSettings.model_validate(settings)


def test_positions_that_move_with_the_text_are_refused(short: Path) -> None:
    config = json.loads((short / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "dynamic", "factor": 2.0}
    (short / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="rope_type 'dynamic'"):
        load_model(short, torch.float32)


def test_a_sample_that_is_longer_than_the_model_is_refused(short: Path) -> None:
    trainer = LocalTrainer(short, FP32)
    ones, zeros = (1.0,) * (LIMIT + 1), (0.0,) * (LIMIT + 1)
    long = Sample(tuple(range(3, LIMIT + 4)), zeros, (0.0, *ones[1:]), zeros, zeros)
    with pytest.raises(EngineError, match=r"33 tokens is longer than the 32 positions.*\[rope\]"):
        trainer.evaluate([long])
    scaled = LocalTrainer(short, FP32, rope=SETTINGS["yarn"])
    assert scaled.evaluate([long])["tokens"] == LIMIT
    assert scaled.publish().digest == read_weights(short).digest
