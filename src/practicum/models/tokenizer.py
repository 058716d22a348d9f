"""Text to tokens where trusted pieces may hold control tokens and all other text never does.

A control token is an added token of the tokenizer (special, or any that is not mere white space):
role markers, end of turn, call tags. In a trusted piece (what a chat template wrote) they are what
they are; in any other piece the same characters are encoded as plain text. As long as no untrusted
piece holds such characters, all pieces are encoded as one text, so that the tokens are those of
the template's own rendering.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from practicum.core import ModelError

_ANCHOR = (
    "\ue0f1\ue0f2\ue0f1"  # private-use characters; encoded before text that does not begin one
)


class Piece(NamedTuple):
    """A stretch of text, and whether it may hold control tokens."""

    text: str
    trusted: bool


class Codec:
    """Encodes pieces and decodes tokens; never adds a token that no piece holds."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ModelError(
                f"{type(tokenizer).__name__} has no fast tokenizer. Save the model with a "
                "tokenizer.json (the `tokenizers` library) and use that folder."
            )
        self.tokenizer = tokenizer
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        self._flags = {token.content: token for token in added.values()}
        self.control = {
            token.content: index
            for index, token in added.items()
            if token.content and (token.special or not token.content.isspace())
        }
        self._pattern = _any_of(self.control)
        self._starts = re.compile(f"(?={_any_of([*self.control, _ANCHOR]).pattern})")
        self._native, self._plain = _native(backend), _plain(backend, self.control)
        self._forbidden = {*self.control.values(), self._plain.token_to_id(_ANCHOR)}

    def encode(self, pieces: Sequence[Piece], *, after: str | None = None) -> list[int]:
        """Tokens of the pieces.

        `after` None: they begin a sequence. Otherwise they go on a sequence whose last tokens
        stand for the text `after` (trusted), which does not change.
        """
        if self._harmless(pieces):
            return self._encode_whole("".join(piece.text for piece in pieces), after)
        return self._encode_sections(pieces, first=after is None)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the tokens, control tokens as they are written."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def first_control(self, text: str) -> re.Match[str] | None:
        """Where the first control token stands in trusted text."""
        return self._pattern.search(text)

    def _harmless(self, pieces: Sequence[Piece]) -> bool:
        found = self._pattern.findall
        text = "".join(piece.text for piece in pieces)
        if _ANCHOR in text:
            return False
        whole = len(found(text))
        trusted = sum(len(found(piece.text)) for piece in pieces if piece.trusted)
        untrusted = any(self._pattern.search(piece.text) for piece in pieces if not piece.trusted)
        return whole == trusted and not untrusted

    def _encode_whole(self, text: str, after: str | None) -> list[int]:
        if after is None:
            return self._ids(self._native, text)
        before = self._ids(self._native, after)
        both = self._ids(self._native, after + text)
        if both[: len(before)] == before:
            return both[len(before) :]
        return self._ids(self._native, _ANCHOR + text)[1:]

    def _encode_sections(self, pieces: Sequence[Piece], *, first: bool) -> list[int]:
        """As `tokenizers` itself works, section by section between the trusted control tokens."""
        ids: list[int] = []
        section = ""
        strip_left = False
        for text, trusted in pieces:
            position = 0
            for match in self._pattern.finditer(text) if trusted else ():
                flags = self._flags[match[0]]
                section += text[position : match.start()]
                section = section.lstrip() if strip_left else section
                section = section.rstrip() if flags.lstrip else section
                ids += self._encode_plain(section, first=first and not ids)
                ids.append(self.control[match[0]])
                section, position, strip_left = "", match.end(), flags.rstrip
            section += text[position:]
        section = section.lstrip() if strip_left else section
        return ids + self._encode_plain(section, first=first and not ids)

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        """Tokens of plain text without any control token."""
        if not text:
            return []
        ids = self._ids(self._plain, text if first else _ANCHOR + text)
        ids = ids if first else ids[1:]
        if self._forbidden.isdisjoint(ids):
            return ids
        # the vocabulary itself spells a control token: break each one after its first character
        cuts = [match.start() + 1 for match in self._starts.finditer(text)]
        edges = zip([0, *cuts], [*cuts, len(text)], strict=True)
        parts = [text[begin:end] for begin, end in edges if begin < end]
        ids = self._ids(self._plain, parts[0]) if first else []
        for part in parts[1:] if first else parts:
            ids += self._ids(self._plain, _ANCHOR + part)[1:]
        return [index for index in ids if index not in self._forbidden]

    @staticmethod
    def _ids(backend: Tokenizer, text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder. Raises ModelError."""
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"no usable tokenizer in {path}: {error}. The folder needs tokenizer.json and "
            "tokenizer_config.json, as `save_pretrained` writes them."
        ) from error


def end_ids(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a generation, by the tokenizer and the folder's generation config."""
    ids = [tokenizer.eos_token_id]
    if (path / "generation_config.json").exists():
        declared = GenerationConfig.from_pretrained(path).eos_token_id
        ids += declared if isinstance(declared, list) else [declared]
    return list(dict.fromkeys(index for index in ids if index is not None))


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _native(backend: Tokenizer) -> Tokenizer:
    """The tokenizer itself (its own copy), with the anchor."""
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.add_special_tokens([AddedToken(_ANCHOR, special=True, normalized=False)])
    return copy


def _plain(backend: Tokenizer, control: Iterable[str]) -> Tokenizer:
    """The tokenizer without its control tokens."""
    state = json.loads(backend.to_str())
    hidden = set(control)
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] not in hidden]
    return _native(Tokenizer.from_str(json.dumps(state)))
