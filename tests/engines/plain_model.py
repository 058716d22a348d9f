"""What transformers alone computes: the measure of the engine."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel


@cache
def plain_model(folder: Path) -> PreTrainedModel:
    """What transformers itself makes of a folder, in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def plain_logprobs(folder: Path, tokens: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """log p(tokens[t + 1] | tokens[: t + 1]) for all tokens of the vocabulary, [T, V]."""
    with torch.no_grad():
        logits = plain_model(folder)(torch.tensor([list(tokens)])).logits[0].float()
    return (logits / temperature).log_softmax(-1)
