"""Count how often lines occur, and find the most frequent ones."""

from collections import Counter

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say


class WordCounts(OneOutput):
    """Level 1: the different lines. Level 2: with their counts. Level 3: the most frequent few."""

    name = "word_counts"
    squeeze = True

    def make(self, seed: int, level: int) -> Task:
        """A file of one word a line; five or more different words, no two equally frequent."""
        rng = self.rng(seed, level)
        source, output, *items = names.words(rng, rng.randint(7, 9))
        source, output = f"{source}.txt", f"{output}.txt"
        counts = dict(zip(items, rng.sample(range(1, 12), len(items)), strict=True))
        rows = [word for word in items for _ in range(counts[word])]
        rng.shuffle(rows)
        table, top = Counter(rows), rng.randint(2, 4)
        ranked = [word for word, _ in table.most_common()]
        match level:
            case 1:
                rule = "the different words, each once, in alphabetical order,"
                command, expected = f"sort -u {source}", sorted(table)
            case 2:
                rule = "how often each word occurs, as lines COUNT WORD sorted by word,"
                command = f"sort {source} | uniq -c"
                expected = [f"{table[word]} {word}" for word in sorted(table)]
            case _:
                rule = (
                    f"the {top} most frequent words, as lines COUNT WORD, the most frequent first,"
                )
                command = f"sort {source} | uniq -c | sort -nr | head -n {top}"
                expected = [f"{table[word]} {word}" for word in ranked[:top]]
        prompt = say(
            rng,
            "{source} has one word per line. Write {rule} to {output}.",
            "Every line of {source} is a word. Save {rule} in {output}.",
            "From the word list {source}, write {rule} to {output}.",
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
