"""Change settings in configuration files without touching anything else."""

from collections.abc import Mapping

from practicum.core import File, Score, Submission, Task
from practicum.domains import names
from practicum.domains.domain import Script
from practicum.domains.terminal import Terminal, say, script
from practicum.rewards.canaries import canary, spoilt
from practicum.rewards.compare import text_file
from practicum.rewards.parts import checked
from practicum.sandbox.contract import Boxes


class ConfigEdit(Terminal):
    """Level 1: set a key or replace a word. Level 2: set two keys. Level 3: both, in two files."""

    name = "config_edit"

    def make(self, seed: int, level: int) -> Task:
        """A file of `key=value` lines and one in which a word stands in several lines."""
        rng = self.rng(seed, level)
        first, second, key, other, old, new, *rest = names.words(rng, 17)
        first, second = f"{first}.conf", f"{second}.ini"
        before, after, before_other, after_other = rng.sample(range(1000, 9999), 4)
        one = [f"# {rest[0]} settings", f"{key}={before}", f"{other}={before_other}"]
        one += [f"{name}={rng.randint(10, 999)}" for name in rest[1:5]]
        two = [f"# {rest[5]} settings", f"host={old}.local", f"path=/srv/{old}/{rest[6]}"]
        two += [f"{rest[7]}={old}", f"{rest[8]}={rest[9]}", f"{rest[10]}=/srv/{rest[0]}"]
        rng.shuffle(one)
        rng.shuffle(two)
        one_after = [row.replace(f"{key}={before}", f"{key}={after}") for row in one]
        two_after = [row.replace(old, new) for row in two]
        setting = say(
            rng,
            "In {file}, change the value of {key} to {after}{also}.",
            "Set {key} to {after}{also} in the file {file}.",
            file=first,
            key=key,
            after=after,
            also=f" and {other} to {after_other}" if level == 2 else "",
        )
        replacing = say(
            rng,
            "Replace every {old} by {new} in {file}.",
            "In {file}, change the word {old} to {new} everywhere.",
            file=second,
            old=old,
            new=new,
        )
        rule = f"s/^{key}=.*/{key}={after}/"
        set_key, replace = f"sed -i '{rule}' {first}", f"sed -i 's/{old}/{new}/g' {second}"
        match level:
            case 1 if rng.random() < 0.5:
                prompt, gold, used = setting, set_key, {first: (one, one_after)}
            case 1:
                prompt, gold, used = replacing, replace, {second: (two, two_after)}
            case 2:
                both = [
                    row.replace(f"{other}={before_other}", f"{other}={after_other}")
                    for row in one_after
                ]
                gold = f"sed -i '{rule}; s/^{other}=.*/{other}={after_other}/' {first}"
                prompt, used = setting, {first: (one, both)}
            case _:
                prompt, gold = f"{setting} {replacing}", f"{set_key}; {replace}"
                used = {first: (one, one_after), second: (two, two_after)}
        return self.task(
            seed,
            level,
            f"{prompt} Leave all other lines as they are.",
            files=[File(path, names.text(rows)) for path, (rows, _) in used.items()],
            artifacts=list(used),
            gold=[gold],
            expected={path: "\n".join(rows) for path, (_, rows) in used.items()},
        )

    async def judge(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """The share of files that are exactly as they should be."""
        expected = task.truth["expected"].items()
        return checked([text_file(submission, path, text) for path, text in expected])

    def impossible(self, task: Task) -> Task:
        """A line more is expected in each file."""
        expected = task.truth["expected"].items()
        return canary(task, expected={path: spoilt(task, text) for path, text in expected})

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """Emptied, deleted and linked files, and right ones that were spoilt."""
        files, gold = " ".join(task.artifacts), task.truth["gold"][0]
        return {
            "emptied": script(f"truncate -s 0 {files}"),
            "padded": script(f"echo 'key=value' | tee -a {files}"),
            "deleted": script(f"rm {files}"),
            "links": script(f"for f in {files}; do ln -sf /etc/passwd $f; done"),
            "gold_and_more": script(f"{gold}; echo 'key=value' | tee -a {files}"),
            "gold_indented": script(f"{gold}; sed -i 's/^/  /' {files}"),
            "gold_reversed": script(f"{gold}; for f in {files}; do tac $f > x; cp x $f; done"),
            "gold_cut": script(f"{gold}; sed -i '$d' {files}"),
            "claims": script(answer="all settings are changed"),
        }
