"""Renderers of hand-written templates over the tiny tokenizer, and tools to call."""

from pathlib import Path

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from practicum.models.render import Renderer
from practicum.models.tiny import tiny_tokenizer

TEMPLATES = Path(__file__).parent / "templates"

#           bos, eos, other control tokens
TOKENS = {
    "llama3": (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    "mistral": ("<s>", "</s>", ("[INST]", "[/INST]")),
    "gemma": ("<bos>", "<eos>", ("<start_of_turn>", "<end_of_turn>")),
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "shell",
            "description": "Run a command in bash; the working directory persists.\nMore.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "edit",
            "description": "Change a line.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "line": {"type": "integer"},
                    "words": {"type": "array", "items": {"type": "string"}},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["path", "line"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "Finish the task.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


def build(template: str, **options: object) -> Renderer:
    """A renderer of one of the templates."""
    bos, eos, others = TOKENS.get(template, ("<|im_start|>", "<|im_end|>", ()))
    backend = tiny_tokenizer()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (bos, eos, *others)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos)
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return Renderer(tokenizer, **options)


ALL = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
