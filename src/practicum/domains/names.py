"""Seeded raw material for tasks: words, file names, lines, people.

No word is part of another one, so that a plain search finds a word where it stands and nowhere
else. All functions draw from the `random.Random` they are given and from nothing else.
"""

from random import Random

_WORDS = """
    apple anchor arrow autumn badge banjo barrel basket beacon berry blanket bottle bridge bronze
    bucket butter cabin cactus camel candle canvas carbon castle cedar cherry circle clover cobalt
    comet copper coral cotton cradle crystal curtain dagger daisy desert dolphin dragon eagle ember
    engine falcon feather fennel ferry fiddle forest fossil galaxy garden garnet ginger glacier
    goblet granite guitar hammer harbor hazel helmet heron hollow honey indigo island ivory jacket
    jasmine jungle juniper kettle kitten ladder lantern lemon leopard linen lizard lotus magnet
    mango maple marble meadow melon mirror monkey mosaic nectar nickel nutmeg oasis olive onyx
    orange orchid otter oyster paddle panda parrot pebble pencil pepper pigeon pillow planet plum
    pocket pollen prairie prism pumpkin puzzle quartz rabbit radish raven ribbon river robin rocket
    saddle salmon sapphire scarlet shadow silver spider spruce stable summit sunset tablet temple
    thistle thunder tiger timber tulip tunnel turtle valley velvet violet walnut whale willow window
    winter wizard yellow zebra zephyr
    """

_PEOPLE = """
    Ada Amir Anna Ben Bea Carl Chen Clara Dan Dora Elif Emil Eva Finn Gita Hana Hugo Ines Ivan Jana
    Jon Kai Kira Lars Lena Leo Lin Luca Mara Max Mia Nils Nora Omar Otto Paul Petra Quinn Rosa Ravi
    Sam Sara Sven Tara Theo Tim Uma Vera Yuki Zoe
    """

WORDS = tuple(_WORDS.split())

PEOPLE = tuple(_PEOPLE.split())

CITIES = ("Oslo", "Lima", "Cairo", "Delhi", "Paris", "Tokyo", "Quito", "Berne", "Porto", "Turin")

SERVICES = ("auth", "billing", "cache", "mailer", "queue", "search", "upload", "worker")

LEVELS = ("DEBUG", "ERROR", "INFO", "WARN")

METHODS = ("GET", "POST", "PUT", "DELETE")

STATUSES = (200, 201, 301, 403, 404, 500, 503)


def words(rng: Random, count: int) -> list[str]:
    """`count` different words."""
    return rng.sample(WORDS, count)


def lines(rng: Random, count: int, pool: list[str], *, width: int = 3) -> list[str]:
    """`count` lines of `width` different words of `pool` each."""
    return [" ".join(rng.sample(pool, width)) for _ in range(count)]


def text(rows: list[str]) -> bytes:
    """Lines as the bytes of a file that ends with a newline."""
    return "".join(f"{row}\n" for row in rows).encode()


def numbers(rng: Random, count: int, low: int = 2, high: int = 2000) -> list[int]:
    """`count` different numbers with one to four digits, so that text order is not number order."""
    tops = [limit for limit in (9, 99, 999, 9999) if limit < high] + [high]
    found: list[int] = []
    while len(found) < count:
        number = rng.randint(low, max(low, rng.choice(tops)))
        if number not in found:
            found.append(number)
    return found


def log_lines(rng: Random, count: int, services: list[str]) -> list[str]:
    """Application log lines: `DATE TIME LEVEL SERVICE MESSAGE`, in the order of time."""
    day = f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    second = rng.randint(0, 3600)
    rows = []
    for _ in range(count):
        second += rng.randint(1, 400)
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        level = rng.choices(LEVELS, (2, 3, 4, 2))[0]
        rows.append(f"{day} {clock} {level} {rng.choice(services)} {' '.join(words(rng, 2))}")
    return rows


def access_lines(rng: Random, count: int) -> list[str]:
    """Web access log lines: `ADDRESS METHOD PATH STATUS BYTES`; a status occurs nowhere else."""
    net = f"10.{rng.randint(0, 9)}.{rng.randint(0, 9)}"
    rows: list[str] = []
    hosts = [f"{net}.{host}" for host in rng.sample(range(2, 99), 6)]
    paths = [f"/{a}/{b}" for a, b in zip(words(rng, 8), words(rng, 8), strict=True)]
    while len(rows) < count:
        size = rng.randint(1000, 9999)
        if any(str(status) in str(size) for status in STATUSES):
            continue
        status, method = rng.choice(STATUSES), rng.choice(METHODS)
        rows.append(f"{rng.choice(hosts)} {method} {rng.choice(paths)} {status} {size}")
    return rows
