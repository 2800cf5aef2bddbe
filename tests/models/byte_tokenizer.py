"""A small byte-level tokenizer, as the files of a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SIZE = 320
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = TEMPLATE.replace(
    "{{ m.role }}\n", "{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n{% endif %}"
).replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
"""Begins each answer with a thought."""
TEXTS = ["What is 12+34?", "naïve café 日本", " two  spaces\n\nand it's done"]


def write(directory: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja of `SIZE` tokens."""
    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [*TEXTS, *(f"{i} plus {i} is {2 * i}, what it's worth" for i in range(80))]
    fast.train_from_iterator(corpus, trainer)
    assert fast.get_vocab_size() == SIZE
    directory.mkdir(parents=True, exist_ok=True)
    fast.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
