"""Direct preference optimisation, here and in TRL's DPOTrainer: same model, pairs, optimiser.

A pair is the prompt of a terminal task with two first answers: the call that a gold solution makes,
and what the model itself said (sampled once, in advance; text that nobody runs). A step is the
gradient of the mean DPO loss of 8 pairs, and AdamW. The log-probabilities of the reference, which
is the model before the first step, are computed for all pairs before; `ratio_cpu_seconds_reference`
is of that. First both take a few steps in fp32: their losses must agree. Then steps in bf16 over
fp32 master weights are measured. The last line is one JSON object; see `sides` for how both are
measured.

    python benchmarks/dpo.py [--quick]
"""

import tempfile
from pathlib import Path
from typing import Any

from sides import MODEL, Meter, Plan, alternate, difference, main, ratio, ratios, use_threads

BATCH, BETA, LONGEST = 8, 0.1, 96  # pairs a step; tokens of a sampled answer
FULL = {"curve": 5, "steps": 8, "learning_rate": 1e-6}  # steps in fp32, measured steps in bf16
QUICK = {"curve": 2, "steps": 3, "learning_rate": 1e-6}
PEER: dict[str, Any] = {"per_device_train_batch_size": 4}


def prepare(sizes: Plan) -> Plan:
    """Prompts of terminal tasks, the first call of each gold solution, and a sampled answer."""
    use_threads()
    from practicum.core import Message
    from practicum.domains import domain_names, get_domain
    from practicum.engines.contract import Prompt
    from practicum.engines.sampler import LocalSampler
    from practicum.engines.trainer import read_weights
    from practicum.models.reference import resolve
    from practicum.models.render import Renderer
    from practicum.recipe.tasks import DEMONSTRATIONS, spread
    from practicum.tools import get_tool

    folder = resolve(MODEL).path
    renderer = Renderer.for_folder(folder)
    terminal = [name for name in domain_names() if get_domain(name).family == "terminal"]
    count = BATCH * (1 + max(sizes["curve"], sizes["steps"]))
    tasks = spread(terminal, [1, 2], count, base=DEMONSTRATIONS, seed=1)
    pairs = []
    for task in tasks:
        schemas = [get_tool(name).schema for name in task.tools]
        prompt = renderer.start([Message.of("user", task.prompt)], schemas)
        chosen = renderer.demonstrate(get_domain(task.domain).solve(task)[0])
        pairs.append({"prompt_ids": list(prompt), "chosen_ids": list(chosen)})
    sampler = LocalSampler(folder, stop_ids=renderer.stop_ids)
    sampler.load(read_weights(folder))
    said = sampler.sample(
        [Prompt(tuple(pair["prompt_ids"]), str(i), LONGEST) for i, pair in enumerate(pairs)]
    )
    for pair, completion in zip(pairs, said, strict=True):
        pair["rejected_ids"] = list(completion.ids)
    mean = {name: sum(len(pair[name]) for pair in pairs) // count for name in pairs[0]}
    print("mean tokens:", mean, flush=True)
    return sizes | {"model": str(folder), "pairs": pairs}


def ours(plan: Plan, meter: Meter) -> None:
    """Steps with Practicum's local trainer."""
    use_threads()
    from practicum.core import Sample
    from practicum.engines.trainer import LocalTrainer, TrainerSettings
    from practicum.learn import losses
    from practicum.learn.aggregate import aggregated
    from practicum.learn.losses.preference import paired

    trainer = LocalTrainer(Path(plan["model"]), TrainerSettings(dtype=plan["dtype"]))
    loss = paired(losses.dpo, beta=BETA)
    meter.begin()
    samples = []
    for number, pair in enumerate(plan["pairs"]):
        for answer, sign in (("chosen_ids", 1.0), ("rejected_ids", -1.0)):
            before, own = (0.0,) * len(pair["prompt_ids"]), len(pair[answer])
            samples.append(
                Sample(
                    tokens=(*pair["prompt_ids"], *pair[answer]),
                    rl_weight=before + (1.0,) * own,
                    ce_weight=before + (0.0,) * own,
                    advantage=before + (sign,) * own,
                    logprobs=before + (0.0,) * own,
                    group=str(number),
                    unit=str(number),
                )
            )
    samples = trainer.score(samples)
    meter.end()
    for start in range(0, len(samples), 2 * BATCH):
        meter.begin()
        batch = aggregated(samples[start : start + 2 * BATCH], "prompt-mean")
        values = trainer.forward_backward(batch, loss)
        trainer.step(plan["learning_rate"])
        meter.end(loss=values["loss"])


def peer(plan: Plan, meter: Meter) -> None:
    """Steps with TRL's DPOTrainer."""
    use_threads()
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    import trl_side

    class Trainer(trl_side.stepwise(trl.DPOTrainer, meter)):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset  # it is tokens already

        def _precompute_ref_logps(self, *args: Any) -> Any:
            meter.begin()
            dataset = super()._precompute_ref_logps(*args)
            meter.end()
            return dataset

    options = plan.get("options", PEER)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=trl_side.model(plan["model"]),
            processing_class=AutoTokenizer.from_pretrained(plan["model"]),
            train_dataset=Dataset.from_list(plan["pairs"]),
            args=trl.DPOConfig(
                **trl_side.settings(folder, plan),
                **options,
                gradient_accumulation_steps=BATCH // options["per_device_train_batch_size"],
                train_sampling_strategy="sequential",
                num_train_epochs=1,
                beta=BETA,
                max_length=None,
                precompute_ref_log_probs=True,  # saves a copy of the model, and its forward passes
            ),
        ).train()


def compare(plan: Plan) -> dict[str, Any]:
    """Both sides, step by step: first the losses in fp32, then the costs in bf16."""
    names = ("ours", "peer")
    exact = alternate(plan | {"dtype": "float32"}, names, 2 + plan["curve"], warm_up=0)
    costs = alternate(plan | {"dtype": "bfloat16"}, names, 2 + plan["steps"], warm_up=0)
    reference = {name: turns[:1] for name, turns in costs.items()}
    exact, costs = ({n: turns[2:] for n, turns in c.items()} for c in (exact, costs))
    return {
        "name": "dpo",
        **ratios(costs["peer"], costs["ours"]),
        "ratio_cpu_seconds_reference": ratio(reference["peer"], reference["ours"], "cpu_seconds"),
        "max_loss_difference": difference(exact["peer"], exact["ours"]),
        "max_loss_difference_bf16": difference(costs["peer"], costs["ours"]),
        "peer": "trl.DPOTrainer",
        "peer_version": costs["peer"][0]["version"],
    }


if __name__ == "__main__":
    main(__doc__, (FULL, QUICK), prepare, {"ours": ours, "peer": peer}, compare)
