"""A tokenizer of a few words, with a chat template, in the files of a Hugging Face directory."""

import json

WORDS = [
    "<unk>", "<end>", "<system>", "<user>", "<assistant>",
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
]  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}> {% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }} <end>{% endgeneration %}{% else %}{{ m.content }} <end>{% endif %} "
    "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)
"""The same text, with what the assistant writes marked."""


def tokenizer(folder, template=TEMPLATE, known=WORDS):
    """Write it, of the words `known`; `<end>` ends a turn and a text."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    made = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "pad_token": "<unk>",
        "unk_token": "<unk>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
