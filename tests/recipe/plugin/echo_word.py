"""A domain as another package would bring it: so easy that a tiny random model learns it."""

from practicum.core import File, Task
from practicum.domains.terminal import OneOutput

WORDS = ("error", "count", "lines", "names", "files", "first")


class EchoWord(OneOutput):
    """Level 1: write one of a few words into a file."""

    name = "echo_word"
    levels = 1

    def make(self, seed: int, level: int) -> Task:
        """The seed decides the word and, so that tasks differ, the text of an unrelated file."""
        rng = self.rng(seed, level)
        word = rng.choice(WORDS)
        return self.pose(
            seed,
            level,
            f"Write the word {word} into the file out.txt.",
            files=[File("notes.txt", f"{rng.random()}\n".encode())],
            output="out.txt",
            expected=[word],
            gold=f"echo {word} > out.txt",
        )
