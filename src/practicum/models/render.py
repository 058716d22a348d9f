"""Messages to tokens and back, token-exact for any chat template.

The tokens of an episode are `start`, then what was sampled, then `bridge`, then what was sampled,
and so on. Sampled tokens are never touched or made again from text; a demonstration takes the place
of sampled tokens and has exactly the tokens that sampling the same text gives.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedTokenizerBase

from practicum.core import Message, ModelError, Stop
from practicum.models.formats import Schemas, split_calls
from practicum.models.template import Template
from practicum.models.tokenizer import Codec, Piece, end_ids, load_tokenizer

_USER, _MODEL = Message.of("user", "Zq8user8qZ"), Message.of("assistant", "Zq8model8qZ")
_REASONS = re.compile(r"<(think|thinking|reasoning)>\s*$")


class Renderer:
    """Tokens for one model's conversations.

    stop_ids: tokens that end the model's turn. end_id: the one that its template writes.
    pad_id: a token for padding (the end token where the model has none of its own).
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int] = (), **options: Any
    ) -> None:
        self.tokenizer = tokenizer
        self.codec = Codec(tokenizer)
        self.template = Template(tokenizer, options)
        self.format = self.template.format
        self._probe(ends)

    @classmethod
    def for_folder(cls, path: str | Path, **options: Any) -> Self:
        """The renderer of a model folder; `options` go to its template. Raises ModelError."""
        folder = Path(path)
        tokenizer = load_tokenizer(folder)
        return cls(tokenizer, end_ids(folder, tokenizer), **options)

    def start(self, messages: Sequence[Message], tools: Schemas = ()) -> list[int]:
        """Tokens of the prompt of the first turn, the generation prompt included."""
        said = self.format.instructions(tools)
        if said:
            system = [m.text for m in messages if m.role == "system"]
            text = "\n\n".join([*filter(None, system), said])
            others = [m for m in messages if m.role != "system"]
            messages = [Message.of("system", text), *others]
        return self.codec.encode(self._show(said, self.template.pieces(messages, tools)))

    def bridge(self, results: Sequence[Message], *, ended: bool) -> list[int]:
        """Tokens between the sampled tokens of one turn and those of the next.

        `results` are tool results, or user messages as feedback. `ended` says that the sampled
        tokens hold the end of the turn; after a cut by length it is written here.
        """
        pieces = self.template.pieces([_USER, _MODEL, *results])
        at = next(i for i, piece in enumerate(pieces) if piece.text == _MODEL.text)
        tail = pieces[at + 1 :]
        if tail and tail[0].trusted and tail[0].text.startswith(self._end):
            tail[0] = Piece(tail[0].text[len(self._end) :], True)
        if not ended:
            tail = [Piece(self._end or self._end_text, True), *tail]
        return self.codec.encode(tail, after=self._end_text if ended else "")

    def demonstrate(self, message: Message) -> list[int]:
        """Tokens of an assistant message as the model itself would sample it, its end included.

        Raises ModelError for a call that the format cannot write.
        """
        try:
            text = self.format.join(message.text, message.calls)
        except ValueError as error:
            raise ModelError(f"no {self.format.name} call can say this: {error}") from None
        pieces = [Piece(self._lead, True), *self._marked(text)]
        pieces.append(Piece(self._end or self._end_text, True))
        return self.codec.encode(pieces, after=self._prompt)

    def parse(self, ids: Sequence[int], stop: Stop = Stop.END, tools: Schemas = ()) -> Message:
        """What the sampled tokens say: text and calls. Calls that cannot be run carry an error."""
        kept = list(ids)
        for position, index in enumerate(kept):
            if index in self.stop_ids:
                kept = kept[:position]
                break
        text, calls = split_calls(
            self.format, self.codec.decode(kept), tools, stop, reasoning=self._reasoning
        )
        return Message.of("assistant", text, *calls)

    def _probe(self, ends: Sequence[int]) -> None:
        """Find what the template writes around an assistant message."""
        prompt = self._text([_USER], prompt=True)
        whole = self._text([_USER, _MODEL], prompt=False)
        before, _, tail = whole.partition(_MODEL.text)
        self._prompt = prompt.split(_USER.text)[-1]
        self._reasoning = bool(_REASONS.search(prompt))
        self._lead = before.removeprefix(prompt) if before.startswith(prompt) else ""
        if self._reasoning and not self._lead:
            self._lead = "</think>\n\n"
        found = self.codec.first_control(tail)
        self._end = tail[: found.end()] if found else ""
        known = [self.codec.control[found[0]]] if found else []
        known += [index for index in ends if index not in known]
        if self.tokenizer.eos_token_id is not None and self.tokenizer.eos_token_id not in known:
            known.append(self.tokenizer.eos_token_id)
        if not known:
            raise ModelError(
                "neither the chat template nor the tokenizer has a token that ends a turn. Set "
                "eos_token in tokenizer_config.json."
            )
        self.end_id = known[0]
        self.stop_ids = frozenset(known)
        self._end_text = self.codec.decode([self.end_id])
        pad = self.tokenizer.pad_token_id
        self.pad_id = self.end_id if pad is None else pad

    def _text(self, messages: Sequence[Message], *, prompt: bool) -> str:
        return "".join(p.text for p in self.template.pieces(messages, prompt=prompt))

    def _show(self, said: str, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces, with the tags in our instructions as the tokens that shall be sampled."""
        shown: list[Piece] = []
        for piece in pieces:
            if said and said in piece.text:
                before, _, after = piece.text.partition(said)
                shown += [Piece(before, False), *self._marked(said), Piece(after, False)]
                said = ""
            else:
                shown.append(piece)
        return shown

    def _marked(self, text: str) -> list[Piece]:
        """The text with only the format's own tags able to be tokens."""
        if not self.format.markup:
            return [Piece(text, False)]
        tags = "|".join(map(re.escape, self.format.markup))
        return [Piece(part, part in self.format.markup) for part in re.split(f"({tags})", text)]
