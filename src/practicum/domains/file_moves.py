"""Move, copy and delete files by name."""

from collections.abc import Mapping

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.domain import Script
from practicum.domains.terminal import Tree, say, script


class FileMoves(Tree):
    """Level 1: one file. Level 2: all with an ending, new folder. Level 3: and delete others."""

    name = "file_moves"

    def make(self, seed: int, level: int) -> Task:
        """A folder to fill, and files with three endings, half of which are never meant."""
        rng = self.rng(seed, level)
        folder, new, fresh, *stems = names.words(rng, 15)
        ending, second, other = rng.sample(("txt", "log", "csv", "md", "tmp", "bak"), 3)
        count = rng.randint(2, 3)
        endings = [ending] * count + [second] * count + [other] * (2 * count)
        files = {
            f"{stem}.{end}": f"{rng.randint(10, 99)} {stem}"
            for stem, end in zip(stems, endings, strict=False)
        }
        mine = [path for path in files if path.endswith(f".{ending}")]
        also = [path for path in files if path.endswith(f".{second}")]
        paths = mine[:1] if level == 1 else mine
        what = mine[0] if level == 1 else f"all .{ending} files"
        which = mine[0] if level == 1 else f"*.{ending}"
        action = rng.choice(("move", "copy", "delete")[: 3 if level == 1 else 2])
        place = (folder, new, f"{new}/{fresh}")[level - 1]
        moved = [(f"{place}/{path}", "text", files[path]) for path in paths]
        absent = [(path, "absent", "") for path in paths]
        match action:
            case "move":
                rule, command = f"Move {what} into the folder {place}", f"mv {which} {place}/"
                wanted = [list(change) for change in zip(moved, absent, strict=True)]
            case "copy":
                rule, command = f"Copy {what} into the folder {place}", f"cp {which} {place}/"
                wanted = [[state] for state in moved]
            case _:
                rule, command = f"Delete {what}", f"rm {which}"
                wanted = [[state] for state in absent]
        gone = set(paths) if action != "copy" else set()
        if level > 1:
            rule = f"Make the new folder {place}. {rule}"
            command = f"mkdir -p {place} && {command}"
        if level > 2:
            rule += f", and delete all .{second} files"
            command += f" && rm *.{second}"
            wanted = [
                [*both, (path, "absent", "")] for both, path in zip(wanted, also, strict=True)
            ]
            gone |= set(also)
        kept = [(path, "text", text) for path, text in files.items() if path not in gone]
        if action == "copy":  # nothing else may be copied along
            kept += [(f"{place}/{path}", "absent", "") for path in files if path not in paths]
        prompt = say(
            rng,
            "{rule}.",
            "{rule}. Leave all other files where they are.",
            "{rule}. Do not touch any other file.",
            rule=rule,
        )
        return self.task(
            seed,
            level,
            prompt,
            files=[File(path, names.text([text])) for path, text in files.items()]
            + [File(folder, kind="dir", mode=0o755)],
            artifacts=[*files, folder, new],
            gold=[command],
            wanted=wanted,
            kept=kept,
        )

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """The same done to every file, and everything deleted."""
        place = task.artifacts[-2 if task.level == 1 else -1]
        return {
            "move_all": script(f"mkdir -p {place}; mv *.* {place}/"),
            "copy_all": script(f"mkdir -p {place}; cp *.* {place}/; rm *.*"),
            "delete_all": script("rm -rf *"),
            "claims": script(answer="all files are in place"),
        }
