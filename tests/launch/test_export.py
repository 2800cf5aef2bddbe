"""`jaxrl export`: what it writes is what transformers, PEFT and jaxrl read, with equal outputs."""

from __future__ import annotations

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer as HfTokenizer

from jaxrl.config import Config
from jaxrl.data.text import tokenizers
from jaxrl.launch import cli
from jaxrl.launch.publish import export, trajectories
from jaxrl.launch.server import named_adapters
from jaxrl.mesh import mesh
from jaxrl.models import catalog, decoder, head, load, lora, lora_stack, reward
from jaxrl.models.lora import LoraConfig
from jaxrl.record import runs
from jaxrl.rollout import policy
from jaxrl.run import loop
from tests.jaxrl import tiny as tiny_run
from tests.models import byte_tokenizer, tiny
from tests.models.conftest import tiny_model  # noqa: F401

CHANGES = {"checkpoint.every": 1, "warm_start.steps": 0, "optimizer.weight_decay": 0.1}
TOKENS = np.arange(3, 15)


def _logits(config, params):
    row = jnp.asarray(TOKENS)[None]
    positions = jnp.arange(row.shape[1])[None]
    hidden = decoder.hidden(config, params, row, positions, jnp.full(row.shape, row.shape[1]))
    return head.logits(hidden[0], decoder.unembedding(params), softcap=config.logit_softcap)


def _theirs(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor(TOKENS)[None]).logits[0].numpy()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A fresh model's run with checkpoints of two steps."""
    directory = tmp_path_factory.mktemp("export") / "run"
    config = tiny_run.config(directory, steps=2, **CHANGES)
    loop.train(config)
    return directory


@pytest.mark.broad
def test_a_fresh_run(run, tmp_path, capsys):
    """The newest checkpoint, another, and the sampler on what is written."""
    out = tmp_path / "out"
    assert cli.main(["export", str(run), "--to", "hf", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    opened = mesh.make(Config().mesh)
    theirs = policy.create(policy.config_of(str(run)), opened)
    ours = policy.create(policy.config_of(str(out)), opened)
    jax.tree.map(np.testing.assert_array_equal, ours.params, theirs.params)
    for text in ("1+2=", "9+9=18"):
        ids = theirs.tokenizer.encode(text)
        assert ours.tokenizer.encode(text) == ids and ours.tokenizer.decode(ids) == text
    assert ours.tokenizer.eos_ids == theirs.tokenizer.eos_ids == (0,)
    card = (out / "README.md").read_text()
    assert "step 2" in card and "| pass@1 |" in card and "AutoModelForCausalLM" in card

    first = tmp_path / "first"
    assert cli.main(["export", str(run), "--step", "1", "--out", str(first)]) == 0
    before = load.load(str(first))[1]["layers"]["mlp"]["up"]
    assert np.abs(before - ours.params["layers"]["mlp"]["up"]).max() > 0
    capsys.readouterr()
    prompt = ["--prompt", "1+2=", "--temperature", "0", "--max-new-tokens", "3", "--json"]
    printed = []
    for name in (run, out):
        assert cli.main(["sample", str(name), *prompt]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parity
def test_a_fresh_run_in_transformers(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    export.export(str(run), export.ExportConfig(out=str(tmp_path / "out")))
    actor = policy.create(policy.config_of(str(run)), mesh.make(Config().mesh))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("12+3=").input_ids == actor.tokenizer.encode("12+3=")
    assert tokenizer.decode([*actor.tokenizer.encode("12"), 0], skip_special_tokens=True) == "12"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    np.testing.assert_allclose(_theirs(model), _logits(actor.model, actor.params), atol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--to", "peft"], "has no adapters"),
        (["--to", "gguf"], "tokenizer of single characters"),
        (["--step", "7"], "no checkpoint of step 7; it has"),
        (["--to", "atif", "--step", "7"], "kept no rollouts of step 7; rollout_log.every"),
        (["--to", "atif", "--push", "a/b"], "push='a/b': to='atif' writes rollouts"),
    ],
)
def test_refusals(run, tmp_path, capsys, given, message):
    assert cli.main(["export", str(run), *given, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_rollouts_of_a_run_as_trajectories(run, tmp_path):
    out = tmp_path / "out"
    assert cli.main(["export", str(run), "--to", "atif", "--out", str(out)]) == 0
    rows = [*runs.completions(run, "rollouts")]
    written = [json.loads(line) for line in (out / trajectories.FILE).open(encoding="utf-8")]
    assert len(written) == len(rows) > 0
    for row, document in zip(rows, written, strict=True):
        question, answer = document["steps"]
        assert question["source"] == "user" and question["message"] == row["prompt"]
        assert answer["message"] == "".join(row["tokens"])
        assert answer["metrics"]["logprobs"] == row["logp"]
        assert document["extra"]["reward"] == row["reward"]


EPISODE = {
    "step": 3, "group": 1, "problem": "p", "prompt": "Find it.", "answer": "42", "reward": 0.5,
    "parts": {"right": 0.5}, "error": None, "stopped": True,
    "tokens": ["look", "(1)", "<tool>", "41", "</tool>", "Answer", ": 42", "!"],
    "source": ["policy", "policy", "tool", "tool", "tool", "forced", "policy", "policy"],
    "logp": [-1.0, -2.0, 0.0, 0.0, 0.0, 0.0, -0.5, -0.25],
}  # fmt: skip


def test_an_episode_as_a_trajectory():
    document = trajectories.trajectory(EPISODE, {"name": "a", "version": "1"}, "run/3/0")
    _, call, reply = document["steps"]
    assert call["message"] == "look(1)" and call["metrics"]["logprobs"] == [-1.0, -2.0]
    assert call["observation"] == {"results": [{"content": "<tool>41</tool>"}]}
    assert "extra" not in call and reply["message"] == "Answer: 42!"
    assert reply["extra"] == {"token_sources": ["forced", "policy", "policy"]}
    assert document["final_metrics"] == {"total_completion_tokens": 5, "total_steps": 3}
    assert document["extra"]["parts"] == {"right": 0.5} and "error" not in document["extra"]
    first = trajectories.trajectory(EPISODE | {"source": ["tool"] * 8}, {}, "x")["steps"]
    assert [step["source"] for step in first] == ["user", "user"]
    for damaged in ({"logp": [0.0]}, {"tokens": None}, {"source": "policy"}):
        with pytest.raises(ValueError, match="rollout x is damaged: tokens, source and logp"):
            trajectories.trajectory(EPISODE | damaged, {}, "x")


@pytest.mark.parity
def test_trajectories_are_those_of_the_formats_own_models():
    atif = pytest.importorskip("atif")
    document = trajectories.trajectory(EPISODE, {"name": "a", "version": "1"}, "run/3/0")
    parsed = atif.Trajectory.model_validate(document)
    assert parsed.steps[1].observation.results[0].content == "<tool>41</tool>"


class _Hub:
    """The two calls of huggingface_hub that an upload makes."""

    def __init__(self, calls, error=None):
        self.calls, self.error = calls, error

    def create_repo(self, repo_id, *, private, exist_ok):
        self.calls.append(("create", repo_id, private, exist_ok))

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        if self.error:
            raise self.error
        names = sorted(path.name for path in folder_path.iterdir())
        self.calls.append(("upload", repo_id, names, commit_message))
        return types.SimpleNamespace(commit_url="https://hub.example/commit/1")


def test_an_export_is_uploaded(run, tmp_path, capsys, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    calls = []
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: _Hub(calls))
    out = tmp_path / "out"
    pushed = ["--push", "me/mine", "--private"]
    assert cli.main(["export", str(run), "--out", str(out), *pushed]) == 0
    names = sorted(path.name for path in out.iterdir())
    assert calls[0] == ("create", "me/mine", True, True) and calls[1][:3] == (
        "upload",
        "me/mine",
        names,
    )
    assert "https://hub.example/commit/1" in capsys.readouterr().out

    error = huggingface_hub.errors.LocalTokenNotFoundError("no token was found\nlog in")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: _Hub(calls, error))
    again = tmp_path / "again"
    assert cli.main(["export", str(run), "--out", str(again), *pushed]) == 1
    said = capsys.readouterr().err
    assert "no token was found" in said and f"hf upload me/mine {again}" in said
    assert (again / "model.safetensors").exists()


def test_a_repository_without_a_name_is_refused_before_anything_is_written(run, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert cli.main(["export", str(run), "--out", out, "--push", "mine"]) == 2
    assert "push='mine': name a repository as ORGANISATION/NAME" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_empty(run, tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert cli.main(["export", str(run), "--out", str(tmp_path)]) == 2
    assert "is not an empty directory" in capsys.readouterr().err
    assert cli.main(["export", str(run)]) == 2
    assert "--out DIR" in capsys.readouterr().err


@pytest.mark.sample(5)
@pytest.mark.exact("exported adapters and merged weights of every family give transformers' logits")
@pytest.mark.parity
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_every_family(tiny_model, variant, tmp_path):  # noqa: F811
    """Merged, as adapters by PEFT, and both again here."""
    import transformers

    theirs = pytest.importorskip("peft")
    _, directory, model, params = tiny_model(variant)
    fused, routed = model.family == "phi3", model.experts is not None
    # PEFT refuses the last projection of some mixers, or knows a projection by another name
    mixers = dict.fromkeys(("nemotron_h", "falcon_h1"), "*/mixer/zxbcdt")
    mixers["kimi_linear"] = "*/mixer/z_*"
    targets = ("*/attention/o",) if fused or routed else ("*/attention/*",)
    if model.recurrent:
        targets += (mixers.get(model.family, "*/mixer/*"),)
    how = LoraConfig(rank=2, alpha=8.0, targets=targets)
    adapters = lora.init(jax.random.key(0), model, params, how)
    adapters = jax.tree.map(lambda a: a + 0.1, adapters)
    source = export.Source(
        name=str(tmp_path),
        config=Config(model=str(directory), lora=how),
        step=1,
        model=model,
        params=lora.attach(model, params, adapters, how),
        adapters=how,
        tokenizer=dataclasses.replace(tokenizers.characters("ab"), eos_ids=(2,)),
        files=None,
        alphabet="ab",
    )
    (tmp_path / "metrics.jsonl").write_text("")
    whole, parts = tmp_path / "hf", tmp_path / "peft"
    export.write(source, export.ExportConfig(out=str(whole)))
    export.write(source, export.ExportConfig(to="peft", out=str(parts)))
    expected = _logits(model, lora.merge(model, params, adapters, how))
    auto = transformers.AutoModelForCausalLM
    merged = auto.from_pretrained(whole, attn_implementation="eager")
    np.testing.assert_allclose(_theirs(merged), expected, atol=1e-4)
    base = auto.from_pretrained(directory, attn_implementation="eager")
    before = _theirs(base)
    adapted = theirs.PeftModel.from_pretrained(base, parts)
    np.testing.assert_allclose(_theirs(adapted), expected, atol=1e-4)
    assert np.abs(before - expected).max() > 1e-2
    raw = json.loads((parts / "adapter_config.json").read_text())
    assert raw["base_model_name_or_path"] == str(directory)
    if variant in ("llama", "gemma3"):
        one, other = (load.load(str(path))[1] for path in (whole, parts))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, other)


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """A tiny Llama with a tokenizer and a chat template."""
    from jaxrl.models.checkpoints import huggingface
    from tests.models.test_gguf_write import LLAMA, _random

    directory = tmp_path_factory.mktemp("hf") / "model"
    huggingface.save(directory, LLAMA, _random(LLAMA), extra={"eos_token_id": 2})
    byte_tokenizer.write(directory)
    (directory / "generation_config.json").write_text('{"top_p": 0.9, "eos_token_id": 2}')
    return directory


@pytest.mark.parity
def test_a_model_through_all_formats(hugging_face, tmp_path):
    """A directory as GGUF, and that as a directory, with the same weights, ids and template."""
    transformers = pytest.importorskip("transformers")
    turns = [{"role": "user", "content": "What is 12+34?"}]
    first = transformers.AutoTokenizer.from_pretrained(hugging_face)
    source = str(hugging_face)
    for to in ("gguf", "hf"):
        out = tmp_path / to
        export.export(source, export.ExportConfig(to=to, out=str(out)))
        source = str(out)
    assert catalog.locate(str(tmp_path / "gguf")) == tmp_path / "gguf" / "model.gguf"
    one, other = (load.load(str(path)) for path in (hugging_face, out))
    assert one[0] == other[0]
    jax.tree.map(np.testing.assert_array_equal, one[1], other[1])
    last = transformers.AutoTokenizer.from_pretrained(out)
    for text in (*byte_tokenizer.TEXTS, "<|im_start|>x<|im_end|>"):
        ids = first(text).input_ids
        assert last(text).input_ids == tokenizers.load(out).encode(text) == ids
    rendered = [
        t.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        for t in (first, last)
    ]
    assert rendered[0] == rendered[1] and rendered[0].endswith("assistant\n")
    generation = json.loads((out / "generation_config.json").read_text())
    assert set(generation["eos_token_id"]) == {0, 2}


def test_files_of_the_model_are_kept(hugging_face, tmp_path):
    out = tmp_path / "out"
    given = export.ExportConfig(out=str(out), dtype="bfloat16", shard_gb=3e-5)
    export.export(str(hugging_face), given)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (hugging_face / name).read_bytes()
    assert len(list(out.glob("model-*.safetensors"))) > 1
    raw = json.loads((out / "config.json").read_text())
    assert raw["torch_dtype"] == "bfloat16" and raw["eos_token_id"] == 2
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["top_p"] == 0.9 and set(generation["eos_token_id"]) == {0, 2}


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _reward_model(directory, pad):
    """A reward model on the byte tokenizer, whose ends are 0 and 2; `pad` is -1 for none."""
    from jaxrl.models.checkpoints import huggingface
    from tests.models.test_gguf_write import LLAMA, _random

    model = dataclasses.replace(LLAMA, labels=1)
    params = _random(model)
    byte_tokenizer.write(directory)
    file, ids = directory / "tokenizer_config.json", {"eos_token_id": 2}
    fields = json.loads(file.read_text())
    fields.pop("pad_token")
    if pad >= 0:
        fields["pad_token"] = SPECIAL[pad]
        ids["pad_token_id"] = pad
    file.write_text(json.dumps(fields))
    huggingface.save(directory, model, params, extra=ids)
    return model, params


def _padding(directory):
    """Ids of the padding token in config.json and in the tokenizer's files."""
    fast = HfTokenizer.from_file(str(directory / "tokenizer.json"))
    named = tokenizers.special_tokens(directory).get("pad_token")
    held = json.loads((directory / "config.json").read_text()).get("pad_token_id")
    return held, None if named is None else fast.token_to_id(named)


@pytest.mark.sample(1, broad=1)
@pytest.mark.parametrize("pad", [-1, 0, 1, 2])
def test_a_reward_model_is_not_padded_with_a_token_that_ends_texts(pad, tmp_path):
    """Another program would take the end of a text, where it is scored, for padding."""
    base, out = tmp_path / "base", tmp_path / "out"
    _reward_model(base, pad)
    (base / "special_tokens_map.json").write_text('{"pad_token": "<|im_end|>"}')
    export.export(str(base), export.ExportConfig(out=str(out)))
    assert _padding(out) == (1, 1)
    map_ = json.loads((out / "special_tokens_map.json").read_text())
    assert map_["pad_token"] == "<|im_start|>"
    assert tokenizers.load(out).eos_ids == tokenizers.load(base).eos_ids == (2, 0)
    kept = "tokenizer.json", *(("tokenizer_config.json",) if pad == 1 else ())
    assert all((out / name).read_bytes() == (base / name).read_bytes() for name in kept)


def test_the_padding_of_a_reward_model_is_a_spare_token_where_there_is_one(tmp_path):
    base, out = tmp_path / "base", tmp_path / "out"
    _reward_model(base, 2)
    file = base / "tokenizer.json"
    raw = json.loads(file.read_text())
    for i in (300, 310):
        spelling = next(token for token, at in raw["model"]["vocab"].items() if at == i)
        raw["added_tokens"].append({**raw["added_tokens"][0], "id": i, "content": spelling})
    file.write_text(json.dumps(raw))
    export.export(str(base), export.ExportConfig(out=str(out)))
    assert _padding(out) == (310, 310)


@pytest.mark.parametrize("kind", ["gguf", "characters"])
def test_the_padding_of_a_reward_model_whose_files_are_written_anew(kind, hugging_face, tmp_path):
    model, params = _reward_model(tmp_path / "base", 2)
    given = {"files": None, "alphabet": "ab", "tokenizer": tokenizers.characters("ab")}
    if kind == "gguf":
        export.export(str(hugging_face), export.ExportConfig(to="gguf", out=str(tmp_path / "g")))
        file = tmp_path / "g" / "model.gguf"
        given = {"files": file, "alphabet": "", "tokenizer": tokenizers.load(file)}
    source = export.Source("mine", None, None, model, params, LoraConfig(rank=0), **given)
    out = tmp_path / "out"
    export.write(source, export.ExportConfig(out=str(out)))
    pad = 1 if kind == "gguf" else 2
    assert _padding(out) == (pad, pad) and pad not in source.tokenizer.eos_ids
    assert not (out / "special_tokens_map.json").exists()
    fast = HfTokenizer.from_file(str(out / "tokenizer.json"))
    before = fast.encode("abba").ids
    fast.add_special_tokens([fast.id_to_token(pad)])  # as transformers does of a padding token
    assert fast.encode("abba").ids == before == source.tokenizer.encode("abba")


@pytest.mark.parity
@pytest.mark.parametrize("pad", [-1, 1, 2])
def test_a_reward_model_in_transformers(pad, tmp_path):
    """A padded batch of texts that end, whatever the base was padded with."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    base, out = tmp_path / "base", tmp_path / "out"
    model, params = _reward_model(base, pad)
    export.export(str(base), export.ExportConfig(out=str(out)))
    own = tokenizers.load(base)
    rows = [[*own.encode(text), own.eos_ids[0]] for text in ("1+2=3", "12+34=46, it's done")]
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    padded = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    with torch.no_grad():
        theirs = classifier(**padded).logits[:, 0].numpy()
    ours = []
    for row in rows:
        tokens = jnp.asarray(row)[None]
        places = jnp.arange(tokens.shape[1])[None]
        states = decoder.hidden(model, params, tokens, places, jnp.full_like(tokens, len(row)))
        ours.append(float(reward.score(params, states[0, -1])[0]))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


def _check_served(base, run, parts, how, before, expected):
    """The run, and what was exported of it, are adapters of a server of their base."""
    opened = policy.create(policy.config_of(base), mesh.make(Config().mesh))
    params = policy.sampling_params(opened.params, "float32")

    def begin(*entries, on=params):
        return named_adapters.begin(
            opened.model, on, "base", entries, "", count=1, rank=1, trust=False
        )

    if how.dora or how.base != "plain":
        with pytest.raises(ValueError, match=f"use_dora=True|a base in {how.base}"):
            begin(f"run={run}")
        return
    book, both = begin(f"run={run}", f"parts={parts}")
    assert book.places == {"run": 1, "parts": 2}
    tokens = jnp.tile(TOKENS, (3, 1))
    rows = jnp.array([1, 0, 2], jnp.int32)
    hidden, _ = decoder.extend(
        opened.model,
        lora_stack.choose(both, rows),
        tokens,
        jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape),
        decoder.empty_cache(opened.model, *tokens.shape),
    )
    got = head.logits(hidden, decoder.unembedding(both))
    for row, logits in zip(got, (expected, before, expected), strict=True):
        np.testing.assert_allclose(row, logits, atol=1e-4)
    with pytest.raises(ValueError, match="was trained on another base"):
        begin(f"run={run}", on=params | {"embed": params["embed"] * 1.1})


@pytest.mark.sample(1)
@pytest.mark.parity
@pytest.mark.parametrize(
    "how",
    [
        LoraConfig(rank=2),
        LoraConfig(rank=2, dora=True),
        LoraConfig(rank=2, base="nf4"),
    ],
    ids=["lora", "dora", "qlora"],
)
def test_a_run_with_adapters(hugging_face, how, tmp_path):
    """Its checkpoint, merged and as adapters, gives transformers and PEFT the run's own logits."""
    transformers, theirs = pytest.importorskip("transformers"), pytest.importorskip("peft")
    run = tmp_path / "run"
    changes = CHANGES | {
        "model": str(hugging_face), "steps": 1, "eval.problems": 4,
        # random weights earn nothing, so the entropy alone moves them
        "objective.entropy_coef": 0.5, "optimizer.learning_rate": 1e-2,
    }  # fmt: skip
    config = dataclasses.replace(tiny_run.config(run, **changes), lora=how)
    loop.train(config)
    actor = policy.create(policy.config_of(str(run)), mesh.make(Config().mesh))
    expected = _logits(actor.model, actor.params)
    whole, parts = tmp_path / "hf", tmp_path / "peft"
    export.export(str(run), export.ExportConfig(out=str(whole)))
    export.export(str(run), export.ExportConfig(to="peft", out=str(parts)))
    auto = transformers.AutoModelForCausalLM
    np.testing.assert_allclose(_theirs(auto.from_pretrained(whole)), expected, atol=1e-4)
    assert json.loads((parts / "adapter_config.json").read_text())["use_dora"] == how.dora
    base = auto.from_pretrained(hugging_face)
    before = _theirs(base)
    adapted = _theirs(theirs.PeftModel.from_pretrained(base, parts))
    assert np.abs(adapted - before).max() > 1e-4  # the run has learned something
    if how.base == "plain":  # PEFT has the base in full
        np.testing.assert_allclose(adapted, expected, atol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(parts)
    assert tokenizer("1+2=").input_ids == actor.tokenizer.encode("1+2=")
    _check_served(str(hugging_face), run, parts, how, before, expected)
