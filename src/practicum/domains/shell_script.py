"""Write a shell script that works on inputs nobody has seen yet."""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from practicum.core import File, Score, Submission, Task
from practicum.domains import names
from practicum.domains.domain import Script
from practicum.domains.terminal import Terminal, say, script
from practicum.rewards.canaries import canary, spoilt
from practicum.rewards.cases import LUCK, Case, run_cases, sources
from practicum.rewards.parts import checked
from practicum.sandbox.contract import Boxes

Rule = tuple[str, str, Callable[[list[str]], list[str]]]
"""What the script prints in words, its one line of shell, and the same in Python."""

CASES = 6


def _rules(level: int, word: str, count: int) -> list[Rule]:
    """The rules of a level for a word and a number of lines."""

    def table(rows: list[str]) -> list[str]:
        found = Counter(row.split()[0] for row in rows)
        return [f"{found[key]} {key}" for key in sorted(found)]

    def having(rows: list[str]) -> list[str]:
        return [row for row in rows if word in row]

    levels: dict[int, list[Rule]] = {
        1: [
            (f"the first {count} lines", f'head -n {count} "$1"', lambda rows: rows[:count]),
            (f"the last {count} lines", f'tail -n {count} "$1"', lambda rows: rows[-count:]),
            ("all lines in alphabetical order", 'sort "$1"', sorted),
            (f"the lines with the word {word}", f'grep {word} "$1"', having),
        ],
        2: [
            (
                f"the lines with the word {word} in alphabetical order",
                f'grep {word} "$1" | sort',
                lambda rows: sorted(having(rows)),
            ),
            (
                f"the first {count} lines in alphabetical order",
                f'sort "$1" | head -n {count}',
                lambda rows: sorted(rows)[:count],
            ),
            (
                f"the last {count} lines, the last one first,",
                f'tail -n {count} "$1" | tac',
                lambda rows: rows[: -count - 1 : -1],
            ),
        ],
        3: [
            (
                "how often each first word of a line occurs, as lines COUNT WORD sorted by word,",
                'cut -d" " -f1 "$1" | sort | uniq -c',
                table,
            ),
            (
                f"the first {count}, in alphabetical order, of the lines with the word {word}",
                f'grep {word} "$1" | sort | head -n {count}',
                lambda rows: sorted(having(rows))[:count],
            ),
            (
                f"the lines without the word {word}, sorted and without duplicates,",
                f'grep -v {word} "$1" | sort -u',
                lambda rows: sorted({row for row in rows if word not in row}),
            ),
        ],
    }
    return levels[level]


class ShellScript(Terminal):
    """Level 1: one command. Level 2: a pipe of two. Level 3: a pipe of two or three, counting."""

    name = "shell_script"

    def make(self, seed: int, level: int) -> Task:
        """A sample to try the script on; the inputs that count are made alike and stay hidden."""
        rng = self.rng(seed, level)
        stem, sample, word, *pool = names.words(rng, 12)
        path, sample, count = f"{stem}.sh", f"{sample}.txt", rng.randint(2, 5)
        rule, line, function = rng.choice(_rules(level, word, count))
        inputs: dict[str, str] = {}
        while len(inputs) < CASES + 1:
            rows = _rows(rng, word, pool)
            expected = "\n".join(function(rows))
            if function(rows) != rows and expected not in inputs:
                inputs[expected] = names.text(rows).decode()
        (_, shown), *hidden = inputs.items()
        prompt = say(
            rng,
            "Write a shell script {path} that prints {rule} of the file given as its first "
            "argument. Try it with `bash {path} {sample}`.",
            "Create {path}. When it is run as `bash {path} {sample}` it must print {rule} of "
            "{sample}. It must work for any file name.",
            path=path,
            rule=rule,
            sample=sample,
        )
        return self.task(
            seed,
            level,
            prompt,
            files=[File(sample, shown.encode())],
            artifacts=[path],
            gold=[f"echo '{line}' > {path}"],
            hidden=[[text, expected] for expected, text in hidden],
        )

    async def judge(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """The share of hidden inputs for which the script prints the right lines."""
        path = task.artifacts[0]
        inputs = [
            File(f"input{n}", text.encode()) for n, (text, _) in enumerate(task.truth["hidden"])
        ]
        cases = [
            Case(("bash", path, file.path), expected)
            for file, (_, expected) in zip(inputs, task.truth["hidden"], strict=True)
        ]
        files = [*sources(submission, [path]), *inputs]
        return checked(await run_cases(boxes, files, cases, task.limits), baseline=LUCK)

    def impossible(self, task: Task) -> Task:
        """The script should print a line more."""
        hidden = [[text, spoilt(task, expected)] for text, expected in task.truth["hidden"]]
        return canary(task, hidden=hidden)

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """Scripts that print everything, nothing, a constant, or the answer for the sample."""
        path, sample = task.artifacts[0], task.files[0].path
        gold = task.truth["gold"][0]
        return {
            "prints_all": script(f"echo 'cat \"$1\"' > {path}"),
            "exits": script(f"echo 'exit 0' > {path}"),
            "constant": script(f"echo 'echo 1' > {path}"),
            "sample_answer": script(
                f"{gold}\nbash {path} {sample} > saved\n"
                f"{{ echo \"cat <<'END'\"; cat saved; echo END; }} > {path}"
            ),
            "link": script(f"ln -s /usr/bin/sort {path}"),
        }


def _rows(rng: Random, word: str, pool: list[str]) -> list[str]:
    """Lines of three words in which the word and some duplicates occur."""
    rows = names.lines(rng, rng.randint(6, 10), [word, *pool])
    rows += [f"{rng.choice(pool)} {word} {rng.choice(pool)}" for _ in range(6)]
    rows += [rng.choice(rows), " ".join(rng.sample(pool, 3))]
    rng.shuffle(rows)
    return rows
