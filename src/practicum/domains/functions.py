"""Small correct Python functions, and the ways in which each of them can be broken.

A function is its source text, because that is what an agent gets to see. `evaluate` runs such a
text, right or deliberately broken, to learn what it returns: it is for the texts of this file
only, never for anything a candidate wrote.
"""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from practicum.domains import names


def evaluate(source: str, name: str, arguments: list[Any]) -> Any:
    """What the function `name` of one of our own texts returns, or the name of what it raises."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    try:
        return scope[name](*arguments)
    except Exception as error:
        return type(error).__name__


def _numbers(rng: Random) -> list[int]:
    return [rng.randint(1, 60) for _ in range(rng.randint(4, 6))]


def _words(rng: Random) -> list[str]:
    return names.words(rng, rng.randint(3, 5))


class Breakable(msgspec.Struct, frozen=True):
    """A function, how to draw arguments for it, and fragments to break: (right, wrong)."""

    text: str
    draw: Callable[[Random], list[Any]]
    bugs: tuple[tuple[str, str], ...]

    @property
    def source(self) -> str:
        """The text as it stands in a file."""
        return self.text.lstrip("\n").replace("'''", '"""')

    @property
    def name(self) -> str:
        """The function's name."""
        return re.findall(r"def (\w+)", self.text)[0]


FUNCTIONS = (
    Breakable(
        """
def total_price(prices, quantity, discount):
    '''Sum of prices times quantity, minus the discount.'''
    total = 0
    for price in prices:
        total += price * quantity
    return total - discount
""",
        lambda rng: [_numbers(rng), rng.randint(2, 9), rng.randint(1, 9)],
        (("price * quantity", "price + quantity"), ("- discount", "+ discount"), ("+=", "=")),
    ),
    Breakable(
        """
def count_above(values, limit):
    '''How many values are greater than limit.'''
    count = 0
    for value in values:
        if value > limit:
            count += 1
    return count
""",
        lambda rng: [sorted(rng.sample(range(10, 30), rng.randint(5, 14))), rng.randint(8, 20)],
        (("value > limit", "value < limit"), ("count += 1", "count += value"), ("> limit", "> 0")),
    ),
    Breakable(
        """
def last_items(items, count):
    '''The last count items, in their order.'''
    start = len(items) - count
    return items[start:]
""",
        lambda rng: [_numbers(rng), rng.randint(1, 3)],
        (("[start:]", "[:start]"), ("- count", "- count - 1"), ("- count", "- count + 1")),
    ),
    Breakable(
        """
def longest_word(words):
    '''The longest word; the first one of several.'''
    best = words[0]
    for word in words:
        if len(word) > len(best):
            best = word
    return best
""",
        lambda rng: [_words(rng)],
        (
            ("> len(best)", "< len(best)"),
            ("best = word\n", "best = len(word)\n"),
            ("> len", "!= len"),
        ),
    ),
    Breakable(
        """
def running_total(values):
    '''The sums of the first one, two, three ... values.'''
    total = 0
    result = []
    for value in values:
        total += value
        result.append(total)
    return result
""",
        lambda rng: [_numbers(rng)],
        (("append(total)", "append(value)"), ("+= value", "-= value"), ("+= value", "= value")),
    ),
    Breakable(
        """
def spread(values):
    '''The largest value minus the smallest.'''
    low = min(values)
    high = max(values)
    return high - low
""",
        lambda rng: [_numbers(rng)],
        (("high - low", "high + low"), ("max(values)", "sum(values)"), ("min(", "sum(")),
    ),
    Breakable(
        """
def initials(words):
    '''The first letters of the words, in upper case.'''
    letters = [word[0] for word in words]
    return "".join(letters).upper()
""",
        lambda rng: [_words(rng)],
        (("word[0]", "word[1]"), (".upper()", ".lower()"), ('"".join', '" ".join')),
    ),
    Breakable(
        """
def between(values, low, high):
    '''The values from low to high, both included, sorted.'''
    inside = [v for v in values if v >= low and v <= high]
    return sorted(inside)
""",
        lambda rng: [_numbers(rng), rng.randint(1, 20), rng.randint(30, 60)],
        (("and", "or"), ("v >= low", "v <= low"), ("sorted(inside)", "sorted(values)")),
    ),
    Breakable(
        """
def repeat_line(word, times):
    '''The word repeated, with a dash between.'''
    parts = [word] * times
    return "-".join(parts)
""",
        lambda rng: [rng.choice(names.WORDS), rng.randint(2, 6)],
        (('"-".join', '"".join'), ("* times", "* 2"), ("[word]", "[times]")),
    ),
    Breakable(
        """
def word_lengths(words):
    '''A dict from each word to its length.'''
    lengths = {}
    for word in words:
        lengths[word] = len(word)
    return lengths
""",
        lambda rng: [_words(rng)],
        (("len(word)", "len(words)"), ("lengths[word] =", "lengths[words[0]] =")),
    ),
    Breakable(
        """
def clock(minutes):
    '''Minutes after midnight as hours and minutes, like 9:05.'''
    hours = minutes // 60
    rest = minutes % 60
    return f"{hours}:{rest:02d}"
""",
        lambda rng: [rng.randint(70, 1400)],
        (("// 60", "// 24"), ("% 60", "% 24"), ("{rest:02d}", "{hours:02d}")),
    ),
    Breakable(
        """
def every_second(items):
    '''The first, third, fifth ... item.'''
    return items[0::2]
""",
        lambda rng: [_numbers(rng)],
        (("0::2", "1::2"), ("::2", "::3"), ("0::2", ":2")),
    ),
    Breakable(
        """
def join_sorted(words):
    '''The words in alphabetical order, with commas between.'''
    ordered = sorted(words)
    return ",".join(ordered)
""",
        lambda rng: [_words(rng)],
        (("= sorted(words)", "= words"), ('","', '" "'), ("(ordered)", "(words)")),
    ),
    Breakable(
        """
def sum_to(first, last):
    '''The sum of all numbers from first to last, both included.'''
    total = 0
    for number in range(first, last + 1):
        total += number
    return total
""",
        lambda rng: [rng.randint(1, 9), rng.randint(10, 30)],
        (("last + 1", "last"), ("+= number", "= number"), ("range(first", "range(1")),
    ),
)
"""Every bug fragment stands exactly once in its function's source."""
