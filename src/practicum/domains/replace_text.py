"""Write a changed copy of a text file."""

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say


class ReplaceText(OneOutput):
    """Level 1: one change. Level 2: two changes. Level 3: changes and lines left out."""

    name = "replace_text"

    def make(self, seed: int, level: int) -> Task:
        """Lines of four words; both words to replace occur, one of them twice in a line."""
        rng = self.rng(seed, level)
        source, output, old, new, also, instead, drop, *pool = names.words(rng, 18)
        source, output = f"{source}.txt", f"{output}.txt"
        rows = names.lines(rng, rng.randint(5, 9), [old, also, drop, *pool[:7]], width=4)
        rows += [f"{old} {pool[7]} {old} {also}", f"{drop} {old} {pool[8]} {pool[9]}"]
        rng.shuffle(rows)
        changed = [row.replace(old, new) for row in rows]
        rule, command = f"every {old} replaced by {new}", f"sed 's/{old}/{new}/g' {source}"
        match level:
            case 1 if rng.random() < 0.4:
                rule, command = "all letters in upper case", f"tr a-z A-Z < {source}"
                expected = [row.upper() for row in rows]
            case 1:
                expected = changed
            case 2 if rng.random() < 0.5:
                rule += " and all letters in upper case"
                command += " | tr a-z A-Z"
                expected = [row.upper() for row in changed]
            case 2:
                rule += f" and every {also} by {instead}"
                command = f"sed 's/{old}/{new}/g; s/{also}/{instead}/g' {source}"
                expected = [row.replace(also, instead) for row in changed]
            case _:
                rule += f" and every {also} by {instead}, without the lines that contain {drop}"
                command = f"sed '/{drop}/d; s/{old}/{new}/g; s/{also}/{instead}/g' {source}"
                expected = [row.replace(also, instead) for row in changed if drop not in row]
        prompt = say(
            rng,
            "Write a copy of {source} to {output} with {rule}. Do not change {source}.",
            "Create {output} from {source}: the same text, but with {rule}.",
            "Save the text of {source} in {output} with {rule}.",
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
