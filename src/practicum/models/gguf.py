"""A GGUF file becomes a safetensors folder: fp32 weights, tokenizer, chat template.

The weights are de-quantised; what quantisation lost stays lost, and the description says so.
"""

import re
from pathlib import Path
from typing import Any

from gguf import GGUFReader, LlamaFileType
from tokenizers import pre_tokenizers

from practicum.core import ModelError
from practicum.models.quiet import quiet

_EXACT = {"ALL_F32": "F32", "MOSTLY_F16": "F16", "MOSTLY_BF16": "BF16"}


def convert_gguf(path: Path, folder: Path) -> tuple[str, str, str]:
    """Write the model in `path` into the existing empty `folder`.

    Returns name, description and licence. Raises ModelError for a file that cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    fields = _fields(path)
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32
            )
        except (ValueError, KeyError, TypeError, NotImplementedError, RuntimeError) as error:
            raise ModelError(
                f"transformers cannot read {path.name} ({error}). Convert it to safetensors "
                "elsewhere and use that folder."
            ) from error
        _clear_quantisation(model)
        _mend_tokenizer(tokenizer, fields.get("tokenizer.ggml.pre"))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    return _describe(path, fields)


def _fields(path: Path) -> dict[str, Any]:
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise ModelError(f"{path} is not a readable GGUF file: {error}. Fetch it again.") from error
    wanted = ("general.file_type", "general.license", "tokenizer.ggml.pre")
    return {key: reader.fields[key].contents() for key in wanted if key in reader.fields}


def _describe(path: Path, fields: dict[str, Any]) -> tuple[str, str, str]:
    kind = LlamaFileType(fields["general.file_type"]).name if "general.file_type" in fields else ""
    exact = _EXACT.get(kind)
    quantised = exact or kind.removeprefix("MOSTLY_") or "an unnamed quantisation"
    name = re.sub(rf"[.-]{re.escape(quantised)}$", "", path.stem, flags=re.IGNORECASE)
    how = "converted from" if exact else "de-quantised from"
    return name, f"{name}, {how} {quantised}", fields.get("general.license", "")


def _clear_quantisation(model: Any) -> None:
    """The weights are plain fp32 now; without this `save_pretrained` refuses them."""
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model._is_quantized = False


def _mend_tokenizer(tokenizer: Any, kind: str | None) -> None:
    """Put back the splitting of text that GGUF names but transformers does not restore.

    "smollm" (llama.cpp, llama-vocab.cpp): every digit alone, then the GPT-2 pattern.
    """
    if kind == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
