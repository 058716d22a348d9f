"""Supervised fine-tuning, here and in TRL's SFTTrainer: same model, data, batches, optimiser.

The data are gold solutions of terminal tasks as conversations of several turns: calls are trained
on, prompts and observations are masked. A step is the gradient of the token-mean cross-entropy of
16 conversations, and AdamW. First both take a few steps in fp32: their losses must agree. Then
steps in bf16 over fp32 master weights are measured. The last line is one JSON object; see `sides`
for how both are measured.

    python benchmarks/sft.py [--quick]
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from sides import MODEL, Meter, Plan, alternate, difference, main, ratios, use_threads

BATCH = 16
FULL = {"curve": 5, "steps": 8, "learning_rate": 1e-4}  # steps in fp32, measured steps in bf16
QUICK = {"curve": 2, "steps": 3, "learning_rate": 1e-4}
PEER: dict[str, Any] = {"per_device_train_batch_size": 4, "padding_free": False}


def prepare(sizes: Plan) -> Plan:
    """Play the gold solutions in boxes; their tokens, and which of them are trained on."""
    from practicum.domains import domain_names, get_domain
    from practicum.learn.samples import demonstration
    from practicum.models.reference import resolve
    from practicum.models.render import Renderer
    from practicum.recipe.demonstrations import demonstrate
    from practicum.recipe.tasks import DEMONSTRATIONS, spread
    from practicum.sandbox.choose import open_boxes

    folder = resolve(MODEL).path
    terminal = [name for name in domain_names() if get_domain(name).family == "terminal"]
    count = BATCH * (1 + max(sizes["curve"], sizes["steps"]))
    tasks = spread(terminal, [1, 2], count, base=DEMONSTRATIONS, seed=1)

    async def play() -> list[Any]:
        boxes = open_boxes()
        try:
            return await demonstrate(
                tasks, Renderer.for_folder(folder), boxes, "sft", at_once=4, on_done=lambda _: None
            )
        finally:
            await boxes.close()

    samples = [demonstration(episode) for episode in asyncio.run(play())]
    conversations = [
        {"ids": sample.tokens, "trained": [w > 0 for w in sample.ce_weight]} for sample in samples
    ]
    return sizes | {"model": str(folder), "conversations": conversations}


def ours(plan: Plan, meter: Meter) -> None:
    """Steps with Practicum's local trainer."""
    use_threads()
    from practicum.core import Sample
    from practicum.engines.trainer import LocalTrainer, TrainerSettings
    from practicum.learn.aggregate import aggregated
    from practicum.learn.losses import clip

    trainer = LocalTrainer(Path(plan["model"]), TrainerSettings(dtype=plan["dtype"]))
    conversations = plan["conversations"]
    for start in range(0, len(conversations), BATCH):
        meter.begin()
        batch = []
        for conversation in conversations[start : start + BATCH]:
            none = (0.0,) * len(conversation["ids"])
            batch.append(
                Sample(
                    tokens=tuple(conversation["ids"]),
                    rl_weight=none,
                    ce_weight=tuple(map(float, conversation["trained"])),
                    advantage=none,
                    logprobs=none,
                )
            )
        values = trainer.forward_backward(aggregated(batch), clip())
        trainer.step(plan["learning_rate"])
        meter.end(loss=values["nll"])


def peer(plan: Plan, meter: Meter) -> None:
    """Steps with TRL's SFTTrainer."""
    use_threads()
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    import trl_side

    rows = [
        {
            "input_ids": c["ids"],
            "labels": [i if on else -100 for i, on in zip(c["ids"], c["trained"], strict=True)],
        }
        for c in plan["conversations"]
    ]
    options = plan.get("options", PEER)
    with tempfile.TemporaryDirectory() as folder:
        trl_side.stepwise(trl.SFTTrainer, meter)(
            model=trl_side.model(plan["model"]),
            processing_class=AutoTokenizer.from_pretrained(plan["model"]),
            train_dataset=Dataset.from_list(rows),
            args=trl.SFTConfig(
                **trl_side.settings(folder, plan),
                **options,
                gradient_accumulation_steps=BATCH // options["per_device_train_batch_size"],
                train_sampling_strategy="sequential",
                num_train_epochs=1,
                max_length=None,
            ),
        ).train()


def compare(plan: Plan) -> dict[str, Any]:
    """Both sides, step by step: first the losses in fp32, then the costs in bf16."""
    names = ("ours", "peer")
    exact = alternate(plan | {"dtype": "float32"}, names, plan["curve"])
    costs = alternate(plan | {"dtype": "bfloat16"}, names, plan["steps"])
    return {
        "name": "sft",
        **ratios(costs["peer"], costs["ours"]),
        "max_loss_difference": difference(exact["peer"], exact["ours"]),
        "max_loss_difference_bf16": difference(costs["peer"], costs["ours"]),
        "peer": "trl.SFTTrainer",
        "peer_version": costs["peer"][0]["version"],
    }


if __name__ == "__main__":
    main(__doc__, (FULL, QUICK), prepare, {"ours": ours, "peer": peer}, compare)
