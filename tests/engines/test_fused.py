"""Fused operations are the plain ones: same values, same gradients, whatever the module."""

import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import sample
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from practicum.engines.attention import load_model
from practicum.engines.fused import _RMSNorm, _SwiGLU
from practicum.engines.packing import Packed


def plain_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def gradients(made: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    upstream = torch.randn(made.shape, generator=torch.Generator().manual_seed(1))
    return list(torch.autograd.grad((made.double() * upstream).sum(), inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm(dtype: torch.dtype, eps: float) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 9, 32), torch.randn(32)]
    rounded = [x.to(dtype).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in rounded]
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    made, wanted = _RMSNorm.apply(*rounded, eps), plain_norm(*exact, eps)
    assert made.dtype == dtype
    assert torch.allclose(made.double(), wanted, **near)
    for one, other in zip(gradients(made, rounded), gradients(wanted, exact), strict=True):
        assert one.dtype == dtype
        assert torch.allclose(one.double(), other, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swiglu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rounded = [torch.randn(3, 7, 16).to(dtype).requires_grad_() for _ in range(2)]
    exact = [x.detach().double().requires_grad_() for x in rounded]
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    made, wanted = _SwiGLU.apply(*rounded), silu(exact[0]) * exact[1]
    assert torch.allclose(made.double(), wanted, **near)
    for one, other in zip(gradients(made, rounded), gradients(wanted, exact), strict=True):
        assert one.dtype == dtype
        assert torch.allclose(one.double(), other, **near)


def test_inputs_are_left_as_they_were() -> None:
    x, weight, gate = (torch.randn(4, 8, requires_grad=True) for _ in range(3))
    kept = [t.detach().clone() for t in (x, weight, gate)]
    (_RMSNorm.apply(x, weight[0], 1e-6) * _SwiGLU.apply(gate, x)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip((x, weight, gate), kept, strict=True))


def test_a_model_is_fused_where_it_is_known(tiny: Path) -> None:
    model = load_model(tiny, torch.float32)
    fused = [type(m).__name__ for m in model.modules() if "forward" in vars(m)]
    layers = model.config.num_hidden_layers
    assert fused.count("LlamaMLP") == layers
    assert fused.count("LlamaRMSNorm") == 2 * layers + 1


def test_a_layer_keeps_only_its_inputs_and_what_attention_needs(tiny: Path) -> None:
    one = sample(random.Random(0), (5, 6, 7))
    pack, ids = Packed([one]), torch.tensor([one.tokens])
    model = load_model(tiny, torch.float32).train()
    layer, seen = model.model.layers[0], dict[str, Any]()
    for module in (layer.input_layernorm, layer.mlp.gate_proj, layer.mlp.up_proj):
        module.register_forward_hook(
            lambda module, _, result: seen.update({type(module).__name__: weakref.ref(result)})
        )
    hidden = model.model(
        input_ids=pack.ids, position_ids=pack.positions, use_cache=False, plan=pack
    ).last_hidden_state
    assert {name: result() for name, result in seen.items()} == {
        "LlamaRMSNorm": None,
        "Linear": None,
    }
    hidden[:, : ids.shape[1]].square().sum().backward()

    plain = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).model
    plain(input_ids=ids, use_cache=False).last_hidden_state.square().sum().backward()
    wanted = {name: p.grad for name, p in plain.named_parameters()}
    for name, parameter in model.model.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name], rtol=1e-4, atol=1e-4), name
