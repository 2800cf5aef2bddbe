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


def model(folder, positions=64):
    """Write the tokenizer and the config of a model of so many positions, without weights."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": positions, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return tokenizer(folder)
