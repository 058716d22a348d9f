"""Extract columns from a web access log."""

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say

COLUMNS = ("address", "method", "path", "status", "size")


class LogFields(OneOutput):
    """Level 1: a column. Level 2: of lines with a status. Level 3: and a method, sorted, unique."""

    name = "log_fields"

    def make(self, seed: int, level: int) -> Task:
        """A log in which each wanted status and method occurs, with repeated addresses."""
        rng = self.rng(seed, level)
        source, output = names.words(rng, 2)
        source, output = f"{source}.log", f"{output}.txt"
        status, method = str(rng.choice(names.STATUSES)), rng.choice(names.METHODS[:2])
        column = rng.choice((0, 2) if level > 1 else range(5))
        rows = names.access_lines(rng, rng.randint(24, 40))
        for line in names.access_lines(rng, 4):
            host, _, path, _, size = line.split()
            rows.insert(rng.randrange(len(rows)), f"{host} {method} {path} {status} {size}")
        fields = [row.split() for row in rows]
        what, print_it = COLUMNS[column], f"{{print ${column + 1}}}"
        match level:
            case 1:
                rule, command = "of every line", f"awk '{print_it}' {source}"
                found = fields
            case 2:
                rule = f"of the lines with status {status}"
                command = f"awk '$4=={status} {print_it}' {source}"
                found = [row for row in fields if row[3] == status]
            case _:
                rule = f"of the {method} lines with status {status}, sorted and without duplicates,"
                command = f"grep {method} {source} | awk '$4=={status} {print_it}' | sort -u"
                found = [row for row in fields if row[3] == status and row[1] == method]
        expected = [row[column] for row in found]
        prompt = say(
            rng,
            "The lines of {source} are ADDRESS METHOD PATH STATUS SIZE. Write the {what} {rule} "
            "to {output}, one per line.",
            "Each line of {source} has the columns address, method, path, status and size. "
            "Save the {what} {rule} in {output}.",
            "Extract the {what} {rule} from the access log {source} into {output}. "
            "Columns: address method path status size.",
            source=source,
            output=output,
            what=what,
            rule=rule,
        )
        return self.pose(
            seed,
            level,
            prompt,
            files=[File(source, names.text(rows))],
            output=output,
            expected=sorted(set(expected)) if level == 3 else expected,
            gold=f"{command} > {output}",
        )
