"""A tiny model with random weights and a small tokenizer, made here: for tests of the whole ring.

Two layers, 64 wide, a byte-level vocabulary of at most 512 in which calls and common commands are
short; on demand a mixture of four experts. The same seed gives the same bytes.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from practicum.models.quiet import quiet

VOCABULARY = 512
_PAD, _BEGIN, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_TAGS = ("<tool_call>", "</tool_call>")  # one token each, as many real models have them

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_TEXT = """\
system
user
assistant
tool
Call a tool like this:
<tool_call>shell
<command>...</command>
</tool_call>
<tool_call>submit
</tool_call>
<tool_call>write
<path>notes.txt</path>
<content>one two three</content>
</tool_call>
Tools:
shell(command: str) - Run a command in bash; the working directory persists
submit(answer: str) - Finish the task and hand in what is in the workspace
read(path: str, start: int) write(path: str, content: str) edit list search
You work in a terminal. Sort the lines of the file names.txt and write the result to out.txt.
Count how many lines of data.csv hold the word error; write the number into the file count.txt.
Create a directory, copy and move files, make the script executable, and pack all into an archive.
sort -u names.txt > out.txt
grep -c error data.csv > count.txt
sort -n numbers.txt | head -n 3 > top.txt
cut -d, -f2 data.csv | sort | uniq -c | sort -rn > result.txt
cat input.txt | tr a-z A-Z > output.txt
sed -i 's/old/new/g' config.ini && awk '{print $1}' log.txt > first.txt
mkdir -p src/lib && cp file.txt src/lib && chmod 644 file.txt && tar czf out.tar.gz src
wc -l < input.txt > lines.txt; ls -la; find . -name '*.log' -delete
exit code 0
the of and to in is that it with for on are be this from each only all not
0 1 2 3 4 5 6 7 8 9
"""


def make_tiny(folder: Path, seed: int, *, mixture: bool = False) -> None:
    """Write the model of this seed into the existing `folder`: Llama, or Qwen3's mixture."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        LlamaConfig,
        PreTrainedTokenizerFast,
        Qwen3MoeConfig,
    )

    backend = tiny_tokenizer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=_BEGIN, eos_token=_END, pad_token=_PAD
    )
    tokenizer.chat_template = _CHATML
    shape: dict[str, Any] = {
        "vocab_size": backend.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "bos_token_id": backend.token_to_id(_BEGIN),
        "eos_token_id": backend.token_to_id(_END),
        "pad_token_id": backend.token_to_id(_PAD),
    }
    if mixture:
        shape |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        config: Any = Qwen3MoeConfig(**shape | {"head_dim": 16, "norm_topk_prob": True})
    else:
        config = LlamaConfig(**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE trained on the text in this file; the same in every process."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = [_PAD, _BEGIN, _END]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(_TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in control],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT.splitlines(keepends=True), trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in _TAGS])
    return tokenizer
