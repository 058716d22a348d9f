"""Keep the lines of a text file that match a word."""

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say


class FilterLines(OneOutput):
    """Level 1: lines with a word. Level 2: one more condition. Level 3: three conditions."""

    name = "filter_lines"

    def make(self, seed: int, level: int) -> Task:
        """Lines of three words; about a third hold the word that is asked for."""
        rng = self.rng(seed, level)
        word, other, source, output, *rest = names.words(rng, 12)
        source, output = f"{source}.txt", f"{output}.txt"
        pool = [word, other, *rest[:6]]
        rows = names.lines(rng, rng.randint(8, 14), pool)
        rows += [f"{rest[6]} {word} {rest[7]}", f"{rest[1]} {word} {rest[0]}"] * 2
        rows += [f"{word} {other} {rest[2]}", f"{rest[3]} {other} {rest[4]}"]
        rng.shuffle(rows)
        kept = [row for row in rows if word in row]
        match level:
            case 1:
                rule, command = "", f"grep {word} {source}"
            case 2 if rng.random() < 0.5:
                rule, command = ", sorted alphabetically,", f"grep {word} {source} | sort"
                kept = sorted(kept)
            case 2:
                rule = f" but not the word {other}"
                command = f"grep {word} {source} | grep -v {other}"
                kept = [row for row in kept if other not in row]
            case _:
                rule = f" but not the word {other}, sorted alphabetically and without duplicates,"
                command = f"grep {word} {source} | grep -v {other} | sort -u"
                kept = sorted({row for row in kept if other not in row})
        prompt = say(
            rng,
            "Write the lines of {source} that contain the word {word}{rule} to {output}.",
            "From {source}, save every line with the word {word}{rule} in a new file {output}.",
            "Create {output}: the lines of {source} that contain {word}{rule}.",
            source=source,
            output=output,
            word=word,
            rule=rule,
        ).replace(",.", ".")
        return self.pose(
            seed,
            level,
            prompt,
            files=[File(source, names.text(rows))],
            output=output,
            expected=kept,
            gold=f"{command} > {output}",
        )
