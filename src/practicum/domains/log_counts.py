"""Count the lines of an application log by level and service."""

from collections import Counter

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say


class LogCounts(OneOutput):
    """Level 1: lines of one level. Level 2: and of one service. Level 3: a table of counts."""

    name = "log_counts"
    squeeze = True

    def make(self, seed: int, level: int) -> Task:
        """A log in which every level and service that is asked for occurs at least six times."""
        rng = self.rng(seed, level)
        source, output = names.words(rng, 2)
        source, output = f"{source}.log", f"{output}.txt"
        services = rng.sample(names.SERVICES, 2)
        service, wanted = services[0], rng.choice(names.LEVELS)
        rows: list[str] = []
        while sum(wanted in row and service in row for row in rows) < 6:
            rows = names.log_lines(rng, rng.randint(70, 110), services)
        mine = [row for row in rows if service in row]
        match level:
            case 1:
                rule = f"the number of {wanted} lines in {source}"
                command = f"grep -c {wanted} {source}"
                expected = [str(sum(wanted in row for row in rows))]
            case 2:
                rule = f"the number of {wanted} lines of the service {service} in {source}"
                command = f"grep {wanted} {source} | grep -c {service}"
                expected = [str(sum(wanted in row for row in mine))]
            case _:
                rule = (
                    f"how often each level (column 3) occurs in the lines of the service {service} "
                    f"in {source}, as lines COUNT LEVEL sorted by level,"
                )
                command = f"grep {service} {source} | cut -d' ' -f3 | sort | uniq -c"
                table = Counter(row.split()[2] for row in mine)
                expected = [f"{table[key]} {key}" for key in sorted(table)]
        prompt = say(
            rng,
            "Write {rule} to {output}.",
            "Save {rule} in the new file {output}.",
            "A log line is DATE TIME LEVEL SERVICE MESSAGE. Write {rule} to {output}.",
            rule=rule,
            output=output,
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
