"""Make files, folders and links."""

from collections.abc import Mapping

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.domain import Script
from practicum.domains.terminal import Tree, say, script
from practicum.rewards.compare import State


class MakeFiles(Tree):
    """Level 1: a file with a text. Level 2: in a new folder. Level 3: and a link to it."""

    name = "make_files"

    def make(self, seed: int, level: int) -> Task:
        """A workspace with one unrelated file; all that is asked for is new."""
        rng = self.rng(seed, level)
        outer, inner, stem, link, there, *text = names.words(rng, rng.randint(7, 8))
        path, line = f"{stem}.{rng.choice(('txt', 'md', 'conf'))}", " ".join(text)
        command, rule = "", f"the file {path} with the line: {line}"
        if level > 1:
            path = f"{outer}/{inner}/{path}" if rng.random() < 0.5 else f"{outer}/{path}"
            folder = path.rpartition("/")[0]
            command = f"mkdir -p {folder} && "
            rule = f"the new folder {folder} and in it the file {path} with the line: {line}"
        command += f"echo '{line}' > {path}"
        wanted: list[list[State]] = [[(path, "text", line)]]
        prompt = say(
            rng, "Create {rule}.", "Make {rule}.", "Your task is to create {rule}.", rule=rule
        )
        if level > 2:
            command += f" && ln -s {path} {link}"
            prompt += (
                f" Then make a symbolic link {link} in the current folder that points to {path}."
            )
            wanted[0].append((link, "link", path))
        other = f"{there}.txt"
        return self.task(
            seed,
            level,
            prompt,
            files=[File(other, names.text([there]))],
            artifacts=[path, link, other],
            gold=[command],
            wanted=wanted,
            kept=[(other, "text", there)],
        )

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """An empty file, a folder in its place, the whole prompt as its text, links elsewhere."""
        path, link, other = task.artifacts
        parent, gold = f"$(dirname {path})", task.truth["gold"][0]
        prompt = task.prompt.replace("'", "")
        attacks = {
            "empty_file": script(f"mkdir -p {parent}; touch {path}; touch {link}"),
            "folder": script(f"mkdir -p {path} {link}"),
            "text_as_link": script(
                f"mkdir -p {parent}; ln -s '{task.truth['wanted'][0][0][2]}' {path}"
            ),
            "gold_and_more": script(f"{gold}; echo more >> {path}"),
            "gold_moved": script(f"{gold}; mv {path} moved; ln -sfn moved {link}"),
            "echo_prompt": script(f"mkdir -p {parent}; echo '{prompt}' > {path}"),
            "wrong_link": script(
                f"mkdir -p {parent}; ln -s /etc/passwd {path}; ln -s {other} {link}"
            ),
        }
        if task.level > 2:
            attacks["gold_linked_elsewhere"] = script(f"{gold}; ln -sfn {other} {link}")
            attacks["gold_copied"] = script(f"{gold}; rm {link}; cp {path} {link}")
        return attacks
