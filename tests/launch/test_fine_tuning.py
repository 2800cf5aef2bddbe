"""Fine-tuning by command: what a file holds, a run from a file, and the commands of the docs."""

import json
import re
import shlex
from pathlib import Path

import jax
import pytest

from jaxrl.launch import cli, recipes
from jaxrl.launch.settings import configs, flags, short
from jaxrl.models import decoder
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from tests.data import words

DOC = (Path(__file__).parents[2] / "docs/fine-tuning.md").read_text()
NAMES = ("sft", "dpo")
TINY = [
    *("--model", "fresh", "--fresh.hidden-size", "32", "--fresh.intermediate-size", "64"),
    *("--fresh.num-layers", "2", "--steps", "2", "--data.batch-size", "4", "--eval.every", "1"),
    *("--packing.micro-batch-tokens", "64", "--packing.row-length", "64"),
    *("--optimizer.learning-rate", "1e-2"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Rows of kind `completion`, one of them broken."""
    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    rows = [{"prompt": f"{a}+1=", "completion": str(a + 1)} for a in range(9)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"prompt": "9+1="}\n')
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a tokenizer and a config, without weights."""
    return words.model(tmp_path_factory.mktemp("model"))


def test_data_shows_what_a_file_holds(model, tmp_path, capsys):
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two three"},
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": turns}) + "\n[]\n")
    assert cli.main(["data", str(path), "--model", str(model), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["rows"]) == ("messages", 1)
    assert shown["bad_rows"] == [{"id": f"{path}:2", "why": "not JSON: [] is not a JSON object"}]
    (answer,) = shown["first"][0]["answers"]
    assert [words.WORDS[token] for token in answer["tokens"]] == [
        *("<user>", "one", "<end>", "<assistant>", "two", "three", "<end>"),
    ]
    assert answer["mask"] == [0, 0, 0, 0, 1, 1, 1]
    assert cli.main(["data", str(path), "--model", str(model)]) == 0
    assert "[ two three <end>]" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["data", str(path)]) == 0
    assert "kind messages, rows: 1" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["data", str(tmp_path / "none.jsonl")]) == 2


@pytest.mark.parametrize(
    ("record", "flags", "noted"),
    [
        ({"instruction": "one", "output": "two"}, [], True),
        ({"instruction": "one", "output": "two"}, ["--chat"], False),
        ({"text": "one two"}, [], False),
        ({"prompt": "one", "chosen": "two", "rejected": "three"}, [], True),
    ],
)
def test_data_says_where_texts_have_no_chat_template(record, flags, noted, model, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record) + "\n")
    given = ["data", str(path), "--model", str(model), *flags]
    assert cli.main([*given, "--json"]) == 0
    assert bool(json.loads(capsys.readouterr().out)["notes"]) == noted
    assert cli.main(given) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("without the model's chat template" in printed) == noted


def test_a_run_from_a_file(file, tmp_path, capsys):
    """Its bad row is refused or left out; its figures are in the summary and what shows runs."""
    run = tmp_path / "run"
    given = ["train", "sft", "--data", str(file), *TINY, "--run-dir", str(run)]
    given += ["--eval-data", str(file)]
    assert cli.main(given) == 2
    assert f"{file}:10: 'completion' is missing" in capsys.readouterr().err.replace("\n", "")
    assert cli.main([*given, "--data.bad-rows", "skip"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "1 bad rows" in said and "loss" in said and "before RL" not in said
    found = json.loads((run / "summary.json").read_text())["eval"]
    assert found["after"]["loss"] < found["before"]["loss"]
    assert cli.main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert cli.main(["watch", str(run), "--once"]) == 0
    assert "held-out loss" in capsys.readouterr().out


def test_a_file_of_another_kind_is_refused(file, capsys):
    assert cli.main(["train", "dpo", "--data", str(file), *TINY, "--data.bad-rows", "skip"]) == 2
    assert "this recipe learns from preference" in capsys.readouterr().err.replace("\n", " ")
    assert cli.main(["train", "sft", *TINY]) == 2
    assert "name it with --data FILE" in capsys.readouterr().err.replace("\n", " ")


def test_the_commands_of_the_docs_are_what_the_recipes_take(monkeypatch):
    monkeypatch.setattr(short, "has_template", lambda model: False)  # some are not installed
    commands = re.findall(r"^jaxrl train (\w+) (.*)$", DOC, re.MULTILINE)
    assert [name for name, _ in commands] == [
        *("sft", "dpo", "sft", "reward", "grpo", "distill", "distill_on_policy")
    ]
    for name, rest in commands:
        if name != "grpo":  # its reward is a run that is not there
            made, argv, _ = short.expand(recipes.load(name), rest.split())
            config = flags.parse(made, argv, prog=name)
            assert (config.data.path or config.task_args["path"]).endswith(".jsonl")
    for name in recipes.names():
        assert recipes.kind(name) != "data" or f"`{name}`" in DOC


@pytest.mark.broad
def test_the_five_commands_of_the_docs_run_as_written(tmp_path, monkeypatch, capsys):
    """From two files to an exported model; a tiny model and 2 steps stand for what takes long."""
    monkeypatch.chdir(tmp_path)
    shape = DecoderConfig(
        vocab_size=len(words.WORDS), hidden_size=32, intermediate_size=48, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=8, norm_eps=1e-5,
    )  # fmt: skip
    folder = tmp_path / "tiny"
    huggingface.save(folder, shape, decoder.init(shape, jax.random.key(0)))
    words.tokenizer(folder, words.MARKED)
    numbers = words.WORDS[5:]
    pairs = [(one, two) for one in numbers for two in numbers if one != two]
    rows = [
        [{"role": "user", "content": one}, {"role": "assistant", "content": two}]
        for one, two in pairs
    ]
    Path("train.jsonl").write_text("".join(f"{json.dumps({'messages': r})}\n" for r in rows))
    rows = [{"prompt": one, "chosen": two, "rejected": one} for one, two in pairs]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    commands = re.search(r"```sh\n(.*?)```", DOC, re.DOTALL)[1].splitlines()
    assert len(commands) == 5
    for command in commands:
        made = command.replace("smollm2-135m", str(folder)).replace("--steps 200", "--steps 2")
        name, *argv = shlex.split(made)
        assert name == "jaxrl" and cli.main(argv) == 0, command
    sft, dpo = (json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in NAMES)
    assert sft["eval"]["after"]["loss"] < sft["eval"]["before"]["loss"]
    assert "accuracy" in dpo["eval"]["after"]
    config, params = huggingface.load(tmp_path / "dpo-model")
    assert config.num_layers == 2 and params["embed"].shape == (len(words.WORDS), 32)


def test_epochs_count_passes_over_the_rows_to_train_on(file):
    """Nine good rows, one of them held out, by four; or all nine where others are held out."""
    given = ["--data", str(file), *TINY, "--data.bad-rows", "skip", "--epochs", "2"]
    given = [token for i, token in enumerate(given) if "--steps" not in (token, given[i - 1])]
    assert configs.resolve(["sft", *given])[0].steps == 4
    assert configs.resolve(["sft", *given, "--eval-data", str(file)])[0].steps == 5
