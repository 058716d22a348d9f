"""Set the permissions of files."""

from collections.abc import Mapping

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.domain import Script
from practicum.domains.terminal import Tree, say, script

MODES = ("400", "440", "444", "600", "640", "660", "700", "750", "755", "770")


class Permissions(Tree):
    """Level 1: one file. Level 2: all with one of two endings. Level 3: in a tree of folders."""

    name = "permissions"

    def make(self, seed: int, level: int) -> Task:
        """Files with the same mode as each other; the wanted mode differs from it."""
        rng = self.rng(seed, level)
        root, inner, *stems = names.words(rng, 12)
        ending, second, *others = rng.sample(("sh", "txt", "conf", "py", "key", "log"), 4)
        mode = rng.choice(MODES)
        cycle = (ending, others[0], second, others[1])
        paths = []
        for at, stem in enumerate(stems[: rng.choice((8, 10))]):
            place = f"{root}/{inner}" if level == 3 and at > 3 else root
            paths.append(f"{place}/{stem}.{cycle[at % 4]}")
        chosen = [path for path in paths if path.endswith(f".{ending}")]
        match level:
            case 1:
                chosen = chosen[:1]
                what, command = f"the file {chosen[0]}", f"chmod {mode} {chosen[0]}"
            case 2:
                what = f"all .{ending} and all .{second} files in {root}"
                command = f"chmod {mode} {root}/*.{ending} {root}/*.{second}"
                chosen += [path for path in paths if path.endswith(f".{second}")]
            case _:
                what = f"all .{ending} files in {root} and in the folders below it"
                command = f"find {root} -name '*.{ending}' -exec chmod {mode} {{}} +"
        prompt = say(
            rng,
            "Set the permissions of {what} to {mode}. Leave other files as they are.",
            "Change the mode of {what} to {mode}, and of no other file.",
            "Use chmod to give {what} the mode {mode}.",
            what=what,
            mode=mode,
        )
        kept = [(path, "mode", "644") for path in paths if path not in chosen]
        return self.task(
            seed,
            level,
            prompt,
            files=[File(path, names.text([path])) for path in paths],
            artifacts=[root],
            gold=[command],
            wanted=[[(path, "mode", mode), (path, "text", path)] for path in chosen],
            kept=kept,
        )

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """The mode for everything, every mode in turn, the wrong mode, everything deleted."""
        root, mode = task.artifacts[0], task.truth["wanted"][0][0][2]
        return {
            "all_files": script(f"find {root} -type f -exec chmod {mode} {{}} +"),
            "open_to_all": script(f"chmod -R 777 {root}"),
            "deleted": script(f"rm -rf {root}/*"),
            "claims": script(answer=f"the mode is {mode} now"),
        }
