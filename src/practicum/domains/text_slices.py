"""Take some lines of a file by their position."""

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say


class TextSlices(OneOutput):
    """Level 1: the first or last lines. Level 2: lines A to B. Level 3: these, then reordered."""

    name = "text_slices"

    def make(self, seed: int, level: int) -> Task:
        """A file of 12 to 20 different lines of three words."""
        rng = self.rng(seed, level)
        source, output, *pool = names.words(rng, 40)
        source, output = f"{source}.txt", f"{output}.txt"
        rows = list(dict.fromkeys(names.lines(rng, rng.randint(12, 20), pool)))
        count, first = rng.randint(3, 8), rng.randint(2, 5)
        last = first + rng.randint(2, 6)
        part, cut = rows[first - 1 : last], f"sed -n '{first},{last}p' {source}"
        match level:
            case 1 if rng.random() < 0.5:
                rule, command = f"the first {count} lines", f"head -n {count} {source}"
                expected = rows[:count]
            case 1:
                rule, command = f"the last {count} lines", f"tail -n {count} {source}"
                expected = rows[-count:]
            case 2:
                rule, command, expected = f"lines {first} to {last}", cut, part
            case _ if rng.random() < 0.5:
                rule = f"lines {first} to {last}, sorted alphabetically,"
                command, expected = f"{cut} | sort", sorted(part)
            case _:
                rule = f"lines {first} to {last} in reverse order, the last one first,"
                command, expected = f"{cut} | tac", part[::-1]
        prompt = say(
            rng,
            "Write {rule} of {source} to {output}.",
            "Save {rule} of the file {source} in {output}.",
            "Create {output} with {rule} of {source}.",
            source=source,
            output=output,
            rule=rule,
        )
        return self.pose(
            seed,
            level,
            prompt,
            files=[File(source, names.text(rows))],
            output=output,
            expected=expected,
            gold=f"{command} > {output}",
        )
