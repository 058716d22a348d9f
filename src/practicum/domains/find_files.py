"""List the files of a tree by name, size and place."""

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say

SMALL, LARGE = 200, 9000  # bytes; the prompt asks for more than 4 kilobytes


class FindFiles(OneOutput):
    """Level 1: by name. Level 2: by name and size. Level 3: and outside one folder."""

    name = "find_files"
    any_order = True

    def make(self, seed: int, level: int) -> Task:
        """A tree of two folder levels; each combination of ending, size and place occurs."""
        rng = self.rng(seed, level)
        root, inner, skipped, output, *stems = names.words(rng, 24)
        output = f"{output}.txt"
        ending, other = rng.sample(("txt", "log", "csv", "md", "conf", "dat"), 2)
        places = [root, f"{root}/{inner}", f"{root}/{skipped}"]
        kinds = [(end, size) for end in (ending, other) for size in (SMALL, LARGE)]
        spots = [(place, *kind) for place in places for kind in kinds]
        spots += [rng.choice(spots) for _ in range(rng.randint(2, 6))]
        rng.shuffle(spots)
        files = [
            (f"{place}/{stem}.{end}", size + rng.randint(0, 99))
            for stem, (place, end, size) in zip(stems, spots, strict=False)
        ]
        chosen = [(path, size) for path, size in files if path.endswith(ending)]
        rule, command = (
            f"the files in {root} whose name ends in .{ending}",
            f"find {root} -name '*.{ending}'",
        )
        if level > 1:
            rule += " and that are larger than 4 kilobytes"
            command += " -size +4k"
            chosen = [(path, size) for path, size in chosen if size > SMALL * 4]
        if level > 2:
            rule += f", but not those in {root}/{skipped}"
            command += f" -not -path '*/{skipped}/*'"
            chosen = [(path, size) for path, size in chosen if f"/{skipped}/" not in path]
        prompt = say(
            rng,
            "Find {rule}. Write their paths to {output}, one per line, each starting with {root}/.",
            "Write the paths of {rule}, to {output}. One path per line, starting with {root}/.",
            "List {rule}, in {output}: one path per line, in any order, starting with {root}/.",
            rule=rule,
            output=output,
            root=root,
        )
        return self.pose(
            seed,
            level,
            prompt,
            files=[File(path, b"x" * size) for path, size in files],
            output=output,
            expected=[path for path, _ in chosen],
            gold=f"{command} > {output}",
        )
