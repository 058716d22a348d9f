"""Sort the lines of a file by text or by number."""

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say


class SortLines(OneOutput):
    """Level 1: one key, upwards. Level 2: by a number, downwards. Level 3: names of the top few."""

    name = "sort_lines"

    def make(self, seed: int, level: int) -> Task:
        """Lines `WORD NUMBER` with different words and numbers of different lengths."""
        rng = self.rng(seed, level)
        source, output, *items = names.words(rng, rng.randint(9, 14))
        source, output = f"{source}.txt", f"{output}.txt"
        values = names.numbers(rng, len(items))
        pairs = list(zip(items, values, strict=True))
        rng.shuffle(pairs)
        by_number = sorted(pairs, key=lambda pair: pair[1], reverse=level > 1)
        count = rng.randint(3, 5)
        match level:
            case 1 if rng.random() < 0.5:
                rule, command = "sorted alphabetically", f"sort {source}"
                expected = [f"{word} {value}" for word, value in sorted(pairs)]
            case 1:
                rule = "sorted by the number in column 2, smallest first"
                command = f"sort -n -k2 {source}"
                expected = [f"{word} {value}" for word, value in by_number]
            case 2:
                rule = "sorted by the number in column 2, largest first"
                command = f"sort -nr -k2 {source}"
                expected = [f"{word} {value}" for word, value in by_number]
            case _:
                rule = (
                    f"with the {count} largest numbers in column 2, largest first, only the words"
                )
                command = f"sort -nr -k2 {source} | head -n {count} | cut -d' ' -f1"
                expected = [word for word, _ in by_number[:count]]
        prompt = say(
            rng,
            "Each line of {source} is a word and a number. Write the lines {rule}, to {output}.",
            "{source} has a word and a number in each line. Save the lines {rule}, in {output}.",
            "Create {output}: the lines of {source} {rule}. Every line is a word and a number.",
            source=source,
            output=output,
            rule=rule,
        )
        return self.pose(
            seed,
            level,
            prompt,
            files=[File(source, names.text([f"{word} {value}" for word, value in pairs]))],
            output=output,
            expected=expected,
            gold=f"{command} > {output}",
        )
