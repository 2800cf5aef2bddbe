"""Episodes with tools, of every family of models and every format of calls: trained as sampled."""

import json

import pytest
import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers

from jaxrl.data import generate
from jaxrl.data.environments import Environment, Opening, Reply, formats, tools, unscored
from jaxrl.data.types import Task
from jaxrl.record import metrics
from jaxrl.run import loop
from tests import broad_except
from tests.jaxrl import tiny as runs
from tests.models import tiny

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
CHATML = ("<|im_start|>{}\n", "<|im_end|>", "\n")
LAYOUTS = {
    "hermes": (*CHATML, "<tool_call>"),
    "qwen_coder": (*CHATML, "<function="),
    "llama": ("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", "", "<|python_tag|>"),
    "mistral": ("[INST]{}\n", "</s>", "", "[TOOL_CALLS]"),
    "deepseek": ("<｜{}｜>", "<｜end▁of▁sentence｜>", "", "<｜tool▁call▁begin｜>"),
    "gemma": ("<start_of_turn>{}\n", "<end_of_turn>", "\n", "<start_of_turn>"),
    "function_gemma": ("<start_of_turn>{}\n", "<end_of_turn>", "\n", "<start_function_call>"),
    "harmony": ("<|start|>{}<|message|>", "<|end|>", "", "<|channel|>"),
}
"""Name of a format to what its templates write: before a message, after it and between messages;
and the mark that it is known by, which stands with the tools."""

PAIRS = {
    "llama": "llama", "llama-linear": "hermes", "llama-llama3": "llama", "mistral": "mistral",
    "smollm3": "hermes", "qwen2-yarn": "hermes", "qwen3": "hermes", "qwen3-moe": "qwen_coder",
    "gemma2": "gemma", "gemma3": "function_gemma", "olmo2": "harmony", "phi3": "hermes",
    "phi4-longrope": "qwen_coder", "deepseek-v2": "deepseek", "deepseek-v3": "deepseek",
}  # fmt: skip
"""Every variant of every family, with the format of calls that its template has."""


def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


def three_turns():
    """Offers a tool, and says what a tool would after each of the first two turns."""
    schema = tools.tool(add).schema

    def step(turns, action):
        turns.append(action)
        said = {"role": "tool", "content": f"{len(turns)} <|im_end|>"}
        return Reply((said,), float(len(set(action)) % 3), done=len(turns) == 3)

    return Task(
        "three_turns",
        lambda split, seed, index: generate.asked("three_turns", str(index), f"{index}?", None),
        unscored,
        pure=True,
        turns=Environment(
            lambda problem, seed: ([], Opening(problem.messages, tools=(schema,))),
            step,
            roles=("tool",),
        ),
    )


def write_tokenizer(directory, layout):
    """Bytes and the special tokens of a layout, with its chat template."""
    lead, end, between, mark = layout
    template = (
        "{% if tools %}TOOLS{{ tools | tojson }} MARK" + end + between + "{% endif %}"
        "{% for m in messages %}LEAD{{ m.content }}" + end + between + "{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT{% endif %}"
    )
    for name, text in (
        ("TOOLS", lead.format("system")), ("MARK", mark), ("LEAD", lead.format("{{ m.role }}")),
        ("ASSISTANT", lead.format("assistant")),
    ):  # fmt: skip
        template = template.replace(name, text)
    made = hf.Tokenizer(models.BPE({piece: i for i, piece in enumerate(BYTES)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([end, "<|im_start|>"])
    made.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(template)
    return template


def test_every_variant_and_format_is_here():
    assert set(PAIRS) == set(tiny.VARIANTS)
    assert set(LAYOUTS) == set(PAIRS.values()) == {form.name for form in formats.FORMATS}


@pytest.mark.exact("episodes with tools: every family's log-prob as sampled is that trained on")
@pytest.mark.parity
@pytest.mark.parametrize("variant", broad_except((), PAIRS))
def test_episodes_of_every_family_are_trained_as_sampled(variant, tmp_path):
    """Three turns with tools, and episodes in flight over steps, which are read again."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    name, arguments = tiny.VARIANTS[variant]
    end = len(BYTES)
    sizes = {"vocab_size": end + 2, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    tiny.make(name, arguments | sizes | {"max_position_embeddings": 1024}, tmp_path / "model")
    template = write_tokenizer(tmp_path / "model", LAYOUTS[PAIRS[variant]])
    assert formats.of_template(template).name == PAIRS[variant]
    loop.train(
        runs.config(
            tmp_path / "run",
            **{
                "model": str(tmp_path / "model"), "fresh": None, "steps": 3,
                "task": f"{__name__}:three_turns", "task_args": {}, "warm_start.steps": 0,
                "rollout.prompts": 2, "rollout.max_prompt_tokens": 400, "rollout.chat": True,
                "rollout.max_new_tokens": 240, "rollout.turn_tokens": 5, "rollout.in_flight": 1.5,
                "sampler.slots": 6, "sampler.bucket": 64, "packing.row_length": 1024,
                "packing.micro_batch_tokens": 1024, "eval.problems": 2, "eval.every": 0,
                "optimizer.learning_rate": 1e-12, "checkpoint.every": 9, "rollout_log.every": 0,
            },
        )
    )  # fmt: skip
    rows = list(metrics.read(tmp_path / "run"))
    assert len(rows) == 3 and all(row["grad_norm"] > 0 for row in rows)
    assert all(row["episode/turns"] == 3 and not row["episode/errors"] for row in rows)
    assert max(row["logp_gap_max"] for row in rows) < 1e-4
