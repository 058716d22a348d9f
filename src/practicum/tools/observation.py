"""How long texts are shown to a model: both ends kept, the middle cut out with a marker."""


def cut_middle(text: str, limit: int) -> str:
    """`text` in at most `limit` characters; the marker says how many were cut out."""
    if len(text) <= limit:
        return text
    marker = "\n[... {} characters cut ...]\n"
    room = limit - len(marker.format(len(text)))
    if room <= 0:
        return text[: max(limit, 0)]
    head, tail = (room + 1) // 2, room // 2
    return text[:head] + marker.format(len(text) - room) + text[len(text) - tail :]
