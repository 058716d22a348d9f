"""Small word problems: amounts, units and dates."""

from datetime import date, timedelta
from random import Random

from practicum.core import Task
from practicum.domains import names
from practicum.domains.terminal import say
from practicum.domains.text import TextOnly


class SmallSums(TextOnly):
    """Level 1: one step. Level 2: two steps. Level 3: three steps, or a date past a month's end."""

    name = "small_sums"

    def make(self, seed: int, level: int) -> Task:
        """One of a few kinds of problem; the answer is a number with its unit, or a date."""
        rng = self.rng(seed, level)
        kinds = ((_add, _take), (_pay, _units), (_share, _date))[level - 1]
        prompt, answer = rng.choice(kinds)(rng)
        return self.ask(seed, level, prompt, answer, _near(answer))


_THINGS = """
    anchors baskets beacons blankets bottles buckets candles curtains daggers feathers goblets
    guitars hammers helmets jackets kettles kittens ladders lanterns lemons magnets melons
    mirrors paddles pebbles pencils pillows pockets pumpkins puzzles ribbons rockets saddles
    tablets tulips turtles
"""

THINGS = tuple(_THINGS.split())


def _people(rng: Random) -> dict[str, str]:
    """Two people and the plural of a thing, for the templates."""
    one, two = rng.sample(names.PEOPLE, 2)
    return {"one": one, "two": two, "things": rng.choice(THINGS)}


def _add(rng: Random) -> tuple[str, str]:
    who, a, b = _people(rng), rng.randint(6, 49), rng.randint(6, 49)
    prompt = say(
        rng,
        "{one} has {a} {things} and {two} has {b}. How many {things} do they have together?",
        "{one} had {a} {things} and got {b} more from {two}. How many {things} has {one} now?",
        a=a,
        b=b,
        **who,
    )
    return f"{prompt} Answer like: 7 {who['things']}.", f"{a + b} {who['things']}"


def _take(rng: Random) -> tuple[str, str]:
    who, b = _people(rng), rng.randint(6, 40)
    a = b + rng.randint(6, 49)
    prompt = say(
        rng,
        "{one} had {a} {things} and gave {b} of them to {two}. How many {things} are left?",
        "{one} has {a} {things}. {two} has {b} fewer. How many {things} has {two}?",
        a=a,
        b=b,
        **who,
    )
    return f"{prompt} Answer like: 7 {who['things']}.", f"{a - b} {who['things']}"


def _pay(rng: Random) -> tuple[str, str]:
    who, price = _people(rng), rng.randint(11, 39)
    count, extra = rng.randint(3, 9), rng.randint(20, 90)
    prompt = say(
        rng,
        "{one} buys {count} {things} at {price} euros each and a bag for {extra} euros. How much "
        "is that?",
        "A bag costs {extra} euros and {things} cost {price} euros each. {one} takes a bag and "
        "{count} {things}. How much does {one} pay?",
        count=count,
        price=price,
        extra=extra,
        **who,
    )
    return f"{prompt} Answer like: 7 euros.", f"{price * count + extra} euros"


def _units(rng: Random) -> tuple[str, str]:
    big, small, factor, what = rng.choice(
        (
            ("hours", "minutes", 60, "The trip of {one} takes"),
            ("minutes", "seconds", 60, "The song of {one} lasts"),
            ("metres", "centimetres", 100, "The rope of {one} measures"),
        )
    )
    a, b = rng.randint(2, 9), rng.randint(5, 55)
    prompt = f"{what.format(**_people(rng))} {a} {big} and {b} {small}. How many {small} is that?"
    return f"{prompt} Answer like: 7 {small}.", f"{a * factor + b} {small}"


def _share(rng: Random) -> tuple[str, str]:
    who, each = _people(rng), rng.randint(6, 20)
    people, more = rng.randint(3, 6), rng.randint(7, 30)
    prompt = say(
        rng,
        "{one} packs {total} {things} into {people} boxes, the same number in each. {two} adds "
        "{more} to one box and takes 5 out again. How many {things} are in that box?",
        "{total} {things} are shared equally by {people} people. {one} is one of them, gets {more} "
        "more from {two} and loses 5. How many {things} has {one}?",
        total=each * people,
        people=people,
        more=more,
        **who,
    )
    return f"{prompt} Answer like: 7 {who['things']}.", f"{each + more - 5} {who['things']}"


def _date(rng: Random) -> tuple[str, str]:
    start = date(2024, 1, 1) + timedelta(days=rng.randint(0, 700))
    days = rng.randint(20, 45)
    prompt = say(
        rng,
        "{one} starts a trip on {start} and comes home {days} days later. On which date?",
        "{one} needs the date {days} days after {start}. Which date is it?",
        start=start.isoformat(),
        days=days,
        **_people(rng),
    )
    return f"{prompt} Write it as YYYY-MM-DD.", (start + timedelta(days=days)).isoformat()


def _near(answer: str) -> list[str]:
    """Wrong answers close to the right one."""
    number, _, unit = answer.partition(" ")
    if unit:
        return [f"{int(number) + step} {unit}" for step in (-1, 1, 10)]
    day = date.fromisoformat(answer)
    return [(day + timedelta(days=step)).isoformat() for step in (-1, 1, 30)]
