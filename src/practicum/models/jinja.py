"""The Jinja environment of chat templates, as transformers defines it, but without a clock.

Templates come with downloaded models, so they run in Jinja's immutable sandbox. `strftime_now`
gives a fixed date: a prompt must not change over night.
"""

import datetime
import functools
import json
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

FIXED_DATE = datetime.date(2025, 1, 1)


@functools.lru_cache(maxsize=64)
def compile_template(source: str) -> jinja2.Template:
    """The template, ready to render. Raises jinja2.TemplateError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _date
    return environment.from_string(source)


class _Generation(Extension):
    """`{% generation %}` marks what the model says; what is inside is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        """The inside of the block."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _date(form: str) -> str:
    return FIXED_DATE.strftime(form)
