"""Change settings in configuration files without touching anything else."""

from collections.abc import Mapping, Sequence

from practicum.core import File, Score, Submission, Task
from practicum.domains import names
from practicum.domains.domain import Script
from practicum.domains.terminal import Terminal, output_attacks, say, script
from practicum.rewards.compare import text_file
from practicum.rewards.parts import checked
from practicum.sandbox.contract import Boxes


class ConfigEdit(Terminal):
    """Level 1: set a key. Level 2: replace a word everywhere. Level 3: one of each, two files."""

    name = "config_edit"

    def make(self, seed: int, level: int) -> Task:
        """Files of `key=value` lines with a comment; the old word stands in several lines."""
        rng = self.rng(seed, level)
        first, second, key, old, new, *rest = names.words(rng, 16)
        first, second = f"{first}.conf", f"{second}.ini"
        before, after = rng.sample(range(1000, 9999), 2)
        one = [f"# {rest[0]} settings", f"{key}={before}"]
        one += [f"{name}={rng.randint(10, 999)}" for name in rest[1:5]]
        two = [f"# {rest[5]} settings", f"host={old}.local", f"path=/srv/{old}/{rest[6]}"]
        two += [f"{rest[7]}={old}", f"{rest[8]}={rest[9]}", f"{rest[10]}=/srv/{rest[0]}"]
        rng.shuffle(one)
        rng.shuffle(two)
        files = {first: one, second: two}
        set_key = f"sed -i 's/^{key}=.*/{key}={after}/' {first}"
        replace = f"sed -i 's/{old}/{new}/g' {second}"
        edited = {
            first: [f"{key}={after}" if row.startswith(f"{key}=") else row for row in one],
            second: [row.replace(old, new) for row in two],
        }
        setting = say(
            rng,
            "In {file}, change the value of {key} to {after}.",
            "Set {key} to {after} in the file {file}.",
            file=first,
            key=key,
            after=after,
        )
        replacing = say(
            rng,
            "Replace every {old} by {new} in {file}.",
            "In {file}, change the word {old} to {new} everywhere.",
            file=second,
            old=old,
            new=new,
        )
        used: Sequence[str] = {1: [first], 2: [second]}.get(level, [first, second])
        prompt = {1: setting, 2: replacing}.get(level, f"{setting} {replacing}")
        gold = {1: set_key, 2: replace}.get(level, f"{set_key}; {replace}")
        return self.task(
            seed,
            level,
            f"{prompt} Leave all other lines as they are.",
            files=[File(path, names.text(files[path])) for path in used],
            artifacts=used,
            gold=[gold],
            expected={path: "\n".join(edited[path]) for path in used},
        )

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """The share of files that are exactly as they should be."""
        expected = task.truth["expected"].items()
        return checked([text_file(submission, path, text) for path, text in expected])

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """Emptied, padded, deleted and linked files."""
        path = task.artifacts[0]
        return {
            "emptied": script(f"> {path}"),
            "padded": script(f"echo 'key=value' >> {path}"),
            "deleted": script(f"rm {path}"),
            "link": script(f"ln -sf /etc/passwd {path}"),
            "claims": output_attacks(path, path)["claims"],
        }
