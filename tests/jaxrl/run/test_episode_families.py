"""Episodes with tools, of every family of models and every format of calls: trained as sampled."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.environments.tools import definition, formats
from jaxrl.data.sources import generate
from jaxrl.data.text import tokenizers
from jaxrl.data.types import Task
from jaxrl.mesh import mesh
from jaxrl.models import catalog
from jaxrl.record import metrics
from jaxrl.rollout import policy
from jaxrl.run import loop
from tests import broad_except
from tests.data import test_environments
from tests.jaxrl import sampler_oracle as oracle
from tests.jaxrl import tiny as runs
from tests.jaxrl.run import flights
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

REWRITING = {
    "no thinking": (test_environments.NO_THINKING, ("<|im_end|>", "<|im_start|>"), "tool"),
    "rounds": (test_environments.ROUNDS, ("<|im_end|>", "<|im_start|>"), "tool"),
    "stripping": (test_environments.QWEN3, ("<|im_end|>", "<|im_start|>"), "user"),
    "harmony": (test_environments.HARMONY, test_environments.HARMONY_TOKENS, "user"),
}
"""Templates that write an earlier turn otherwise than it was asked for, with their special tokens,
the first of which ends a turn, and the role of replies."""

PAIRS = {
    "llama": "llama", "llama-linear": "hermes", "llama-llama3": "llama", "mistral": "mistral",
    "smollm3": "hermes", "qwen2-yarn": "hermes", "qwen3": "hermes", "qwen3-moe": "qwen_coder",
    "gemma2": "gemma", "gemma3": "function_gemma", "olmo2": "harmony", "phi3": "hermes",
    "phi4-longrope": "qwen_coder", "deepseek-v2": "deepseek", "deepseek-v3": "deepseek",
    "mixtral": "mistral", "minimax-m2": "qwen_coder", "glm4-moe": "hermes",
    "glm4-moe-lite": "hermes", "olmo3": "hermes", "ministral3": "mistral", "seed-oss": "hermes",
    "ernie4-5": "hermes", "granite": "hermes", "granitemoe": "hermes", "gpt-oss": "harmony",
    "qwen3-next": "qwen_coder", "qwen3-5": "qwen_coder", "qwen3-5-moe": "qwen_coder",
    "lfm2": "hermes", "lfm2-moe": "hermes", "gemma4": "gemma", "gemma4-moe": "gemma",
    "granite-hybrid": "hermes", "granite-hybrid-dense": "hermes", "nemotron-h": "hermes",
    "deepseek-v32": "deepseek", "glm-moe-dsa": "hermes", "olmo-hybrid": "hermes",
    "olmo-hybrid-rope": "hermes", "falcon-h1": "hermes", "falcon-h1-norm": "hermes",
    "llama4": "llama", "llama4-interleaved": "llama", "kimi-linear": "deepseek",
}  # fmt: skip
"""Every variant of every family, with the format of calls that its template has."""

ALIKE = frozenset({
    "llama-linear", "llama-llama3", "qwen2-yarn", "ministral3", "seed-oss", "ernie4-5", "granite",
    "granitemoe", "mixtral", "olmo3", "glm4-moe-lite", "minimax-m2", "qwen3-next", "qwen3-5",
    "deepseek-v2", "phi3", "lfm2", "lfm2-moe", "granite-hybrid", "granite-hybrid-dense",
    "nemotron-h", "gemma4", "gemma4-moe", "deepseek-v32", "glm-moe-dsa", "olmo-hybrid",
    "olmo-hybrid-rope", "falcon-h1", "falcon-h1-norm", "llama4", "llama4-interleaved",
    "kimi-linear",
})  # fmt: skip
"""Variants whose layers are of the kinds of another's, or that shorter tests of runs play: these
tests of them are slow ones."""
FORMS = (
    "gemma2", "glm4-moe", "gpt-oss", "mistral", "olmo2", "phi4-longrope", "qwen3-moe", "smollm3",
)  # fmt: skip
"""Variants that have templates of their own, and layers that remember as those of others do: where
templates are not what is tested, they are slow."""
ELSEWHERE = (
    "deepseek-v3", "gemma3", "glm4-moe", "gpt-oss", "phi4-longrope", "qwen3", "qwen3-5-moe",
    "smollm3",
)  # fmt: skip
"""Variants whose format of calls another variant has, or that the test of two versions plays, which
also has their formats: where formats are what is tested, they are slow."""


def by_cost(ordinary: Iterable[str], alike: Iterable[str] = ALIKE) -> list[Any]:
    """The variants of a parametrised test; those that are not named are broad, or slow if alike."""
    return [
        pytest.param(v, marks=pytest.mark.slow) if v in alike and v not in ordinary
        else v if v in ordinary
        else pytest.param(v, marks=pytest.mark.broad)
        for v in PAIRS
    ]  # fmt: skip


def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


def three_turns(offered=True, role="tool", replaced=False):
    """Offers a tool, and says what a tool would after each of the first two turns; with `replaced`
    the last turn is taken in another conversation."""
    schemas = (definition.tool(add).schema,) * offered

    def step(turns, action):
        turns.append(action)
        said, reward = {"role": role, "content": f"{len(turns)} <|im_end|>"}, len(set(action)) % 3
        if replaced and len(turns) == 2:
            asked = {"role": "user", "content": "summary"}
            return Reply(reward=float(reward), opening=Opening((asked,), tools=schemas))
        return Reply((said,), float(reward), done=len(turns) == 3)

    return Task(
        "three_turns",
        lambda split, seed, index: generate.user_problem(
            "three_turns", str(index), f"{index}?", None
        ),
        unscored,
        pure=True,
        turns=Environment(
            lambda problem, seed: ([], Opening(problem.messages, tools=schemas)),
            step,
            roles=(role,),
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
    save_tokenizer(directory, template, (end, "<|im_start|>"))
    return template


def save_tokenizer(directory, template, special):
    """Bytes and special tokens, the first of which ends a turn."""
    made = hf.Tokenizer(models.BPE({piece: i for i, piece in enumerate(BYTES)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    made.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": special[0],
        "pad_token": special[0],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(template)


def test_every_variant_and_format_is_here():
    assert set(PAIRS) == set(tiny.VARIANTS)
    assert set(LAYOUTS) == set(PAIRS.values()) == {form.name for form in formats.FORMATS}


@pytest.mark.sample(0, broad=3)
@pytest.mark.exact("episodes with tools: every family's log-prob as sampled is that trained on")
@pytest.mark.parity
@pytest.mark.parametrize("variant", by_cost((), (*ALIKE, *ELSEWHERE)))
def test_episodes_of_every_family_are_trained_as_sampled(variant, tmp_path):
    """Three turns with tools, and episodes in flight over steps, which are read again."""
    make_model(variant, 2, tmp_path)
    template = write_tokenizer(tmp_path / "model", LAYOUTS[PAIRS[variant]])
    assert formats.of_template(template).name == PAIRS[variant]
    rows = played(tmp_path)
    assert len(rows) == 3 and all(row["grad_norm"] > 0 for row in rows)
    assert all(row["episode/turns"] == 3 and not row["episode/errors"] for row in rows)
    assert max(row["logp_gap_max"] for row in rows) < 1e-4


@pytest.mark.sample(1)
@pytest.mark.exact("every family: each action has the log-prob of the version that sampled it")
@pytest.mark.parity
@pytest.mark.parametrize("variant", by_cost(("qwen3",), (*ALIKE, *FORMS, "llama", "gemma3")))
def test_episodes_of_two_versions_and_contexts_are_as_sampled(variant, tmp_path):
    """With tools, in two contexts, begun under one version and ended under the next."""
    make_model(variant, 2, tmp_path)
    write_tokenizer(tmp_path / "model", LAYOUTS[PAIRS[variant]])
    changes = {"optimizer.learning_rate": 3e-3, "checkpoint.every": 1, "checkpoint.keep": 9}
    fields = fields_of(tmp_path, replaced=True) | changes
    found = flights.trained(tmp_path / "run", **fields)
    config = runs.config(tmp_path / "run", **fields)
    model, _ = policy.describe(config)
    on = mesh.make(config.mesh)
    weights = [policy.restored(config.run_dir, model, on, step)[0] for step in range(3)]
    both, several = 0, 0
    for c in found:
        tokens, start = np.array([*c.request.prompt, *c.tokens.tolist()]), len(c.request.prompt)
        paths = list(flights.contexts(c))
        versions = set(c.version[c.actions].tolist())
        for version in versions:
            scores, _ = oracle.forward([tokens[p] for p in paths], weights[version], model)
            for path, each in zip(paths, scores, strict=True):
                at = path[-1] - start
                if c.version[at] == version:
                    logp = oracle.distribution(each[len(path) - 2], c.request, ())
                    assert c.logp[at] == pytest.approx(logp[tokens[path[-1]]], abs=1e-4)
        several += len(versions) > 1
        both += c.parent is not None
    assert several and both
    # In the first step every token is of the version that is trained.
    assert next(iter(metrics.read(tmp_path / "run")))["logp_gap_max"] < 1e-4


@pytest.mark.sample(1)
@pytest.mark.exact("templates that rewrite turns: the log-prob as sampled is that trained on")
@pytest.mark.parity
@pytest.mark.parametrize("name", broad_except(("no thinking",), REWRITING))
def test_episodes_of_rewriting_templates_are_trained_as_sampled(name, tmp_path):
    """Each turn is in a context of its own, and is trained in that."""
    template, special, role = REWRITING[name]
    make_model("llama", len(special), tmp_path)
    save_tokenizer(tmp_path / "model", template, special)
    rows = played(tmp_path, offered=False, role=role)
    assert len(rows) == 3 and all(row["grad_norm"] > 0 for row in rows)
    assert all(row["episode/turns"] == 3 and not row["episode/errors"] for row in rows)
    assert max(row["logp_gap_max"] for row in rows) < 1e-4
    logged = (tmp_path / "run/rollouts/000003.jsonl").read_text().splitlines()
    assert all(("parent" in json.loads(line)) == (name != "stripping") for line in logged)


@pytest.mark.sample(1)
@pytest.mark.exact("a packaged model's template: the log-prob as sampled is that trained on")
@pytest.mark.parity
@pytest.mark.parametrize("offered", [False, True], ids=["plain", "tools"])
def test_episodes_of_a_packaged_template_are_trained_as_sampled(offered, tmp_path, monkeypatch):
    """Tokenizer and template of the packaged model that has one, and a tiny decoder.

    It shows no tools, so these are explained in its system message.
    """
    try:
        made = tokenizers.load(catalog.locate("smollm2-135m"))
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    make_model("llama", made.vocab_size - len(BYTES), tmp_path)
    monkeypatch.setattr(tokenizers, "load", lambda path: made)
    short = {"rollout.max_prompt_tokens": 160, "rollout.max_new_tokens": 90}
    packed = {"packing.row_length": 256, "packing.micro_batch_tokens": 256}
    changes = fields_of(tmp_path, offered=offered) | short | packed
    loop.train(runs.config(tmp_path / "run", **changes))
    rows = list(metrics.read(tmp_path / "run"))
    assert len(rows) == 3 and all(row["grad_norm"] > 0 for row in rows)
    assert all(row["episode/turns"] == 3 and not row["episode/errors"] for row in rows)
    assert max(row["logp_gap_max"] for row in rows) < 1e-4


def make_model(variant, special, directory):
    """A tiny model of bytes and so many special tokens; skips the test without `transformers`."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    name, arguments = tiny.VARIANTS[variant]
    end = len(BYTES)
    sizes = {
        "vocab_size": end + special, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
        "max_position_embeddings": 1024,
    }  # fmt: skip
    tiny.make(name, arguments | sizes, directory / "model")


def played(directory, **arguments):
    """Metrics of a run on `three_turns`, which has episodes in flight over its steps."""
    loop.train(runs.config(directory / "run", **fields_of(directory, **arguments)))
    return list(metrics.read(directory / "run"))


def fields_of(directory, **arguments):
    """The config of a run on `three_turns`, as changes of the tiny one."""
    return {
        "model": str(directory / "model"), "steps": 3,
        "task": f"{__name__}:three_turns", "task_args": arguments, "warm_start.steps": 0,
        "rollout.prompts": 2, "rollout.max_prompt_tokens": 400, "rollout.chat": True,
        "rollout.max_new_tokens": 240, "rollout.turn_tokens": 5, "rollout.in_flight": 1.5,
        "sampler.slots": 6, "sampler.bucket": 64, "packing.row_length": 1024,
        "packing.micro_batch_tokens": 1024, "eval.problems": 2, "eval.every": 0,
        "optimizer.learning_rate": 1e-12, "checkpoint.every": 9, "rollout_log.every": 1,
    }  # fmt: skip
