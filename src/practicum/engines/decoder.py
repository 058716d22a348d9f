"""A model's decoder as sampling runs it: few operations for few tokens.

With one token for each of some rows, what counts is how many operations there are and that each
weight is read once. transformers makes some sixty operations a layer; the families below need half
of them here. In bf16 a CPU multiplies from copies of the weights in oneDNN's blocked layout, which
oneDNN would make anew in every call. Other models run as transformers has them.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.functional import linear, pad, silu
from transformers.activations import SiLUActivation

from practicum.engines.attention import Plan

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")


class Decoder:
    """Tokens and positions [B, C] -> hidden states [B, C, hidden], with the model's weights now."""

    def __init__(self, model: Any) -> None:
        self.base = model.get_decoder()
        self.config = model.config.get_text_config()
        self.dtype, self.device = model.dtype, model.device
        weight = model.get_output_embeddings().weight
        self.width = weight.shape[1]
        self.logits = BlockedHead(weight) if _multiplies_blocks(weight) else Head(weight)

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, plan: Plan) -> torch.Tensor:
        """`plan` decides which keys each query sees."""
        return self.base(
            input_ids=ids, position_ids=positions, use_cache=False, plan=plan
        ).last_hidden_state


def decoder_of(model: Any) -> Decoder:
    """The decoder of a model, for as long as its weights stay as they are."""
    base = model.get_decoder()
    if type(base).__name__ in FAMILIES and isinstance(base.layers[0].mlp.act_fn, SiLUActivation):
        return LeanDecoder(model)
    return Decoder(model)


class LeanDecoder(Decoder):
    """Pre-norm layers of rotary attention and a SiLU-gated unit."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.layers = [_Layer(layer) for layer in self.base.layers]
        self.norm = _Norm(self.base.norm)

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, plan: Plan) -> torch.Tensor:
        """See `Decoder`."""
        embedded = self.base.embed_tokens(ids)
        cos, sin = self.base.rotary_emb(embedded, positions)  # [B, C, D]
        hidden = embedded.float()
        sin[..., : sin.shape[-1] // 2].neg_()
        for layer in self.layers:
            layer.add_to(hidden, cos[:, :, None], sin[:, :, None], plan)
        return self.norm(hidden)


class _Layer:
    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index, self.scale = attention.layer_idx, attention.scaling
        self.dim = attention.head_dim
        self.heads = attention.q_proj.out_features // self.dim
        self.norm = _Norm(layer.input_layernorm)
        self.mlp_norm = _Norm(layer.post_attention_layernorm)
        self.head_norms: list[_Norm] = []
        if hasattr(attention, "q_norm"):
            self.head_norms = [_Norm(attention.q_norm), _Norm(attention.k_norm)]
        self.qk_v = _Product([attention.q_proj, attention.k_proj], [attention.v_proj])
        self.out = _Product([attention.o_proj])
        self.gate_up = _Product([mlp.gate_proj], [mlp.up_proj])
        self.down = _Product([mlp.down_proj])

    def add_to(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, plan: Plan
    ) -> None:
        """Add what the layer says to `hidden`, in place."""
        qk, v = self.qk_v(self.norm(hidden))
        heads = (*hidden.shape[:2], -1, self.dim)
        qk, v = qk.view(heads), v.view(heads)
        if self.head_norms:
            parts = qk.split([self.heads, qk.shape[2] - self.heads], 2)
            qk = torch.cat([norm(x) for norm, x in zip(self.head_norms, parts, strict=True)], 2)
        turned = qk.roll(self.dim // 2, -1)
        qk = qk.mul_(cos).addcmul_(turned, sin)
        q, k = qk[:, :, : self.heads], qk[:, :, self.heads :]
        seen = plan.attend(
            self.index, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.scale
        )
        (out,) = self.out(seen.flatten(2))
        hidden += out
        gate, up = self.gate_up(self.mlp_norm(hidden))
        (down,) = self.down(silu(gate, inplace=True).mul_(up))
        hidden += down


class _Norm:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last dimension, in fp32 until the end."""

    def __init__(self, norm: Any) -> None:
        self.dtype, size = norm.weight.dtype, norm.weight.shape[0]
        self.weight = norm.weight.float() * math.sqrt(size)
        self.least = torch.tensor(math.sqrt(norm.variance_epsilon * size)).to(norm.weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n] -> [..., n] in the dtype of the weight."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x / length.hypot_(self.least)).mul_(self.weight).to(self.dtype)


class _Product:
    """Linear layers of the same input, as one product where the weights are copied anyway.

    The outputs of layers in one group lie side by side.
    """

    def __init__(self, *groups: Sequence[Linear]) -> None:
        self.groups = groups
        self.sizes = [sum(layer.out_features for layer in group) for group in groups]
        self.weight: torch.Tensor | None = None
        layers = [layer for group in groups for layer in group]
        if all(_multiplies_blocks(layer.weight) for layer in layers):
            weight = torch.cat([layer.weight for layer in layers])
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)
            biases: list[torch.Tensor] = [x.bias for x in layers if x.bias is not None]
            self.bias = torch.cat(biases) if biases else None

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """[..., in] -> [..., out] of each group."""
        if self.weight is not None:
            return _multiply(x, self.weight, self.bias).split(self.sizes, -1)
        outs = [[linear(x, layer.weight, layer.bias) for layer in group] for group in self.groups]
        return [torch.cat(out, -1) if len(out) > 1 else out[0] for out in outs]


class Head:
    """Hidden states [N, hidden] -> logits [N, V] in fp32."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.float()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """See above."""
        return linear(hidden.float(), self.weight)


class BlockedHead(Head):
    """From bf16 products, less than the largest of a few: those near zero are rounded least.

    What is taken off a row changes no probability. It is a column of the product, where sums are in
    fp32; only the result has the 8 bits of bf16, and a likely token's is small.
    """

    FEW = 512  # the first tokens of a vocabulary are its most common ones

    def __init__(self, weight: torch.Tensor) -> None:
        self.few = weight[: self.FEW]
        width = weight.shape[1]
        wider = weight.new_zeros(len(weight), (width + 32) // 32 * 32)
        wider[:, :width], wider[:, width] = weight, 1
        self.weight = torch.ops.mkldnn._reorder_linear_weight(wider)
        self.more = wider.shape[1] - width

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Head`."""
        largest = linear(hidden, self.few).amax(-1, keepdim=True)
        wider = pad(torch.cat([hidden, -largest], -1), (0, self.more - 1))
        return _multiply(wider, self.weight).float()


def _multiplies_blocks(weight: torch.Tensor) -> bool:
    """Whether oneDNN multiplies with this weight from blocks."""
    return (
        weight.is_cpu
        and weight.dtype is torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`linear` from a blocked weight."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
