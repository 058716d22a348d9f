"""Put a few words or numbers in order."""

from practicum.core import Task
from practicum.domains import names
from practicum.domains.terminal import say
from practicum.domains.text import TextOnly


class OrderWords(TextOnly):
    """Level 1: 4 items, upwards. Level 2: 5 items, downwards. Level 3: 7, some left out first."""

    name = "order_words"

    def make(self, seed: int, level: int) -> Task:
        """The items are never given in the order that is asked for."""
        rng = self.rng(seed, level)
        count = (4, 5, 7)[level - 1]
        down = level == 2 or (level == 3 and rng.random() < 0.5)
        words = rng.random() < 0.5
        items = (
            names.words(rng, count) if words else [str(n) for n in rng.sample(range(10, 99), count)]
        )
        chosen = items
        kind, where = ("words", "") if words else ("numbers", "")
        if level == 3 and words:
            drop = rng.choice(items)[0]
            where = f" that do not start with {drop}"
            chosen = [item for item in items if item[0] != drop]
        elif level == 3:
            limit = sorted(map(int, items))[2]
            where = f" above {limit}"
            chosen = [item for item in items if int(item) > limit]
        right = sorted(chosen, reverse=down)
        if chosen == right:
            chosen = items = items[::-1]
        order = ("alphabetical order", "reverse alphabetical order")[down]
        if not words:
            order = ("order from small to large", "order from large to small")[down]
        prompt = say(
            rng,
            "Put the {kind}{where} in {order}: {items}.",
            "Write these {kind}{where} in {order}, with commas between them: {items}.",
            "Here are some {kind}: {items}. List the ones{where} in {order}."
            if where
            else "Here are some {kind}: {items}. List them in {order}.",
            kind=kind,
            where=where,
            order=order,
            items=", ".join(items),
        )
        wrong = [", ".join(items), ", ".join(right[::-1]), ", ".join(right[:-1]), right[0]]
        return self.ask(seed, level, prompt, ", ".join(right), wrong)
