"""One RL step, here and in TRL's GRPOTrainer: same model, prompts, token counts, threads, dtypes.

A step is: sample 8 completions for each of 8 prompts, take the gradient of the token-mean clipped
loss over all 64, apply AdamW, and hand the new weights to the sampler. The last line is one JSON
object; see `sides` for how both are measured.

    python benchmarks/step.py [--quick]
"""

import tempfile
from pathlib import Path
from typing import Any

from sides import Meter, Plan, alternate, main, ratios, task_prompts, use_threads

PROMPTS, COMPLETIONS = 8, 8
SAME = {"learning_rate": 1e-6, "dtype": "bfloat16"}  # bf16 arithmetic over fp32 master weights
FULL = {"tokens": 48, "steps": 3, **SAME}  # tokens a completion, measured steps after a first one
QUICK = {"tokens": 16, "steps": 1, **SAME}
PEER: dict[str, Any] = {"per_device_train_batch_size": 8}


def prepare(sizes: Plan) -> Plan:
    """Resolve the model and render the first prompts of terminal tasks."""
    folder, renderer, rendered = task_prompts(PROMPTS)
    prompts = []
    for ids in rendered:
        text = renderer.codec.decode(ids)
        if renderer.tokenizer(text)["input_ids"] != ids:
            raise SystemExit(f"a prompt does not survive its tokenizer: {text!r}")
        prompts.append({"ids": ids, "text": text})
    return sizes | {
        "model": folder,
        "prompts": prompts,
        "stop_ids": sorted(renderer.stop_ids),
    }


def ours(plan: Plan, meter: Meter) -> None:
    """Steps with Practicum's local engine."""
    use_threads()
    from practicum.core import Sample
    from practicum.engines.contract import Prompt
    from practicum.engines.sampler import LocalSampler
    from practicum.engines.trainer import LocalTrainer, TrainerSettings
    from practicum.learn.aggregate import aggregated
    from practicum.learn.losses import clip

    trainer = LocalTrainer(Path(plan["model"]), TrainerSettings(dtype=plan["dtype"]))
    sampler = LocalSampler(Path(plan["model"]), stop_ids=plan["stop_ids"], dtype=plan["dtype"])
    sampler.load(trainer.publish())
    texts = [prompt["ids"] for prompt in plan["prompts"]]
    loss = clip()
    rows = [(ids, f"{i}/{c}") for i, ids in enumerate(texts) for c in range(COMPLETIONS)]
    for step in range(1 + plan["steps"]):
        meter.begin()
        prompts = [Prompt(tuple(ids), f"{step}/{row}", plan["tokens"]) for ids, row in rows]
        done = sampler.sample(prompts, banned=plan["stop_ids"])
        batch = []
        for index, (prompt, completion) in enumerate(zip(prompts, done, strict=True)):
            before, new = (0.0,) * len(prompt.ids), len(completion.ids)
            batch.append(
                Sample(
                    tokens=prompt.ids + completion.ids,
                    rl_weight=before + (1.0,) * new,
                    ce_weight=before + (0.0,) * new,
                    advantage=before + ((1.0 if index % 2 else -1.0),) * new,
                    logprobs=before + completion.logprobs,
                    group=str(index // COMPLETIONS),
                )
            )
        trainer.forward_backward(aggregated(batch), loss)
        trainer.step(plan["learning_rate"])
        sampler.load(trainer.publish())
        meter.end(tokens=sum(len(completion.ids) for completion in done))


def peer(plan: Plan, meter: Meter) -> None:
    """Steps with TRL's GRPOTrainer."""
    use_threads()
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    import trl_side

    def alternating(completion_ids: list[list[int]], **_: Any) -> list[float]:
        trainer.facts["tokens"] = sum(map(len, completion_ids))
        return [float(index % 2) for index in range(len(completion_ids))]

    with tempfile.TemporaryDirectory() as folder:
        trainer = trl_side.stepwise(trl.GRPOTrainer, meter)(
            model=trl_side.model(plan["model"]),
            processing_class=AutoTokenizer.from_pretrained(plan["model"]),
            reward_funcs=alternating,
            train_dataset=Dataset.from_dict({"prompt": [p["text"] for p in plan["prompts"]]}),
            args=trl.GRPOConfig(
                **trl_side.settings(folder, plan),
                **(options := plan.get("options", PEER)),
                gradient_accumulation_steps=(
                    PROMPTS * COMPLETIONS // options["per_device_train_batch_size"]
                ),
                num_generations=COMPLETIONS,
                max_completion_length=plan["tokens"],
                generation_kwargs={"suppress_tokens": plan["stop_ids"]},
                temperature=1.0,
                max_steps=1 + plan["steps"],
                loss_type="dapo",
                beta=0.0,
                num_iterations=1,
                shuffle_dataset=False,
            ),
        )
        trainer.train()


def compare(plan: Plan) -> dict[str, Any]:
    """Both sides, step by step."""
    costs = alternate(plan, ("ours", "peer"), plan["steps"])
    expected = PROMPTS * COMPLETIONS * plan["tokens"]
    if any(cost["tokens"] != expected for steps in costs.values() for cost in steps):
        raise SystemExit(f"not every step sampled {expected} tokens: the comparison is void")
    return {
        "name": "step",
        **ratios(costs["peer"], costs["ours"]),
        "peer": "trl.GRPOTrainer",
        "peer_version": costs["peer"][0]["version"],
    }


if __name__ == "__main__":
    main(__doc__, (FULL, QUICK), prepare, {"ours": ours, "peer": peer}, compare)
