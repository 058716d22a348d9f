"""Guesses at what a row says next, looked up in what it has read: prompt-lookup decoding.

A guess is what followed the same few tokens the last time (Saxena 2023, "Prompt lookup decoding").
The sampler computes behind a guess in one forward pass and draws at each position with the number
that the position always has. A draw counts as long as what it stands behind was drawn too. So the
tokens are those that would have been drawn one by one, not only as likely (but for rounding, as
other shapes are multiplied); the guesses decide how many come at once. Leviathan et al. 2023, arXiv
2211.17192, keep the distribution only.
"""

from collections.abc import Iterable

SAME = 3  # tokens that must have come before in the same order


class Lookup:
    """The tokens of a row, and where each few of them came last."""

    def __init__(self, tokens: Iterable[int], most: int) -> None:
        """`most` tokens are guessed at once at most."""
        self.tokens: list[int] = []
        self.most = most
        self._behind: dict[tuple[int, ...], int] = {}  # the last few -> where they ended
        self._found: int | None = None  # where the present few ended before
        self._count = min(2, most)
        self.add(tokens)

    def add(self, tokens: Iterable[int]) -> None:
        """Go on with what was read or said."""
        for token in tokens:
            self.tokens.append(token)
            few = tuple(self.tokens[-SAME:])
            self._found = self._behind.get(few)
            self._behind[few] = len(self.tokens)

    def guess(self, room: int) -> list[int]:
        """What may come next, at most `room` tokens, and nothing where nothing is found."""
        if self._found is None:
            return []
        return self.tokens[self._found : self._found + min(self._count, max(0, room))]

    def learn(self, right: int) -> None:
        """So many of the last guess were right: guess up to twice as many next time."""
        self._count = min(self.most, max(1, 2 * right))
