"""How calls are written: the formats that chat templates use, and one default for those without."""

from practicum.models.formats.contract import CallFormat, Malformed, Schemas, split_calls
from practicum.models.formats.hermes import Hermes
from practicum.models.formats.llama import LlamaJson
from practicum.models.formats.qwen_xml import QwenXml
from practicum.models.formats.tagged import Tagged

NATIVE: tuple[CallFormat, ...] = (Hermes(), QwenXml(), LlamaJson())
"""Formats that a template may bring along; one is used where the template itself writes it."""

DEFAULT: CallFormat = Tagged()
"""The format for every other template."""

__all__ = [
    "DEFAULT",
    "NATIVE",
    "CallFormat",
    "Hermes",
    "LlamaJson",
    "Malformed",
    "QwenXml",
    "Schemas",
    "Tagged",
    "split_calls",
]
