"""Select columns and rows of a CSV file, and add them up."""

from collections import Counter

from practicum.core import File, Task
from practicum.domains import names
from practicum.domains.terminal import OneOutput, say

HEADER = ("name", "city", "age", "score")


class CsvColumns(OneOutput):
    """Level 1: two columns. Level 2: a column of some rows. Level 3: sums, by city or filtered."""

    name = "csv_columns"

    def make(self, seed: int, level: int) -> Task:
        """Rows `name,city,age,score`; every city occurs at least twice."""
        rng = self.rng(seed, level)
        source, output = names.words(rng, 2)
        source, output = f"{source}.csv", f"{output}.txt"
        cities = rng.sample(names.CITIES, 3)
        people = rng.sample(names.PEOPLE, rng.randint(10, 16))
        rows = [
            (
                person,
                (cities * 2 + [rng.choice(cities)] * len(people))[at],
                rng.randint(19, 69),
                score,
            )
            for at, (person, score) in enumerate(
                zip(people, names.numbers(rng, len(people), 2, 99), strict=True)
            )
        ]
        rng.shuffle(rows)
        city, age = cities[0], sorted(row[2] for row in rows)[len(rows) // 2 - 1]
        match level:
            case 1:
                first, second = sorted(rng.sample(range(4), 2))
                rule = f"the columns {HEADER[first]} and {HEADER[second]}, with the header,"
                command = f"cut -d, -f{first + 1},{second + 1} {source}"
                expected = [f"{row[first]},{row[second]}" for row in (HEADER, *rows)]
            case 2 if rng.random() < 0.5:
                rule = f"the names of the people in {city}, one per line,"
                command = f"awk -F, '$2==\"{city}\" {{print $1}}' {source}"
                expected = [row[0] for row in rows if row[1] == city]
            case 2:
                rule = f"the names of the people with an age above {age}, one per line,"
                command = f"awk -F, 'NR>1 && $3>{age} {{print $1}}' {source}"
                expected = [row[0] for row in rows if row[2] > age]
            case _:
                everyone = rng.random() < 0.5
                limit, test = ("", "") if everyone else (f" above age {age}", f" && $3>{age}")
                rule = f"the sum of the scores of the people{limit} in each city, as lines CITY,SUM"
                rule += " sorted by city,"
                command = (
                    f"awk -F, 'NR>1{test} {{s[$2]+=$4}} END {{for (c in s) print c\",\"s[c]}}' "
                    f"{source} | sort"
                )
                sums = Counter[str]()
                for row in rows:
                    if everyone or row[2] > age:
                        sums[row[1]] += row[3]
                expected = [f"{key},{sums[key]}" for key in sorted(sums)]
        prompt = say(
            rng,
            "{source} has the columns name,city,age,score. Write {rule} to {output}.",
            "Read the CSV file {source} (name,city,age,score) and save {rule} in {output}.",
            "From the CSV file {source} with the header name,city,age,score, write {rule} to "
            "{output}.",
            source=source,
            output=output,
            rule=rule,
        )
        table = [",".join(map(str, row)) for row in (HEADER, *rows)]
        return self.pose(
            seed,
            level,
            prompt,
            files=[File(source, names.text(table))],
            output=output,
            expected=expected,
            gold=f"{command} > {output}",
        )
