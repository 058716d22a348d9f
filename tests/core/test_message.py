"""A message is a list of parts from the first day, and round-trips through JSON."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import Message, Text, ToolCall

texts = st.text(st.characters(codec="utf-8"), max_size=20)
calls = st.builds(
    ToolCall, name=texts, arguments=st.dictionaries(texts, texts, max_size=3), error=texts
)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.lists(st.builds(Text, texts), max_size=3).map(tuple),
    calls=st.lists(calls, max_size=2).map(tuple),
    name=texts,
)


def test_of_makes_one_part_or_none() -> None:
    assert Message.of("user", "hello").content == (Text("hello"),)
    assert Message.of("assistant").content == ()


@given(messages)
def test_text_joins_the_parts_in_order(message: Message) -> None:
    assert message.text == "".join(part.text for part in message.content)


@given(messages)
def test_a_message_survives_serialisation(message: Message) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


def test_parts_are_tagged_so_that_other_kinds_can_join() -> None:
    written = msgspec.json.decode(msgspec.json.encode(Message.of("user", "hi")))
    assert written["content"] == [{"type": "text", "text": "hi"}]
