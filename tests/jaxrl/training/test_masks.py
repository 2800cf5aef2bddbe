"""Secrets on command lines and in configs."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl import config as configs
from jaxrl import masks
from jaxrl.launch import algorithms, recipes
from jaxrl.record import rundir
from tests.jaxrl import tiny

SECRET = "hunter2hunter2"
COMMANDS = [
    ["--task-args.api-key", SECRET],
    [f"--task-args.api_key={SECRET}"],
    ["--api-key", SECRET, "--steps", "3"],
    [f"OPENAI_API_KEY={SECRET}"],
    [f"WANDB_API_KEY={SECRET}", "--steps", "3"],
    ["--url", f"https://me:{SECRET}@host:8000/v1"],
    [f"--url=https://{SECRET}@host/v1"],
    ["--url", f"http://host/v1?model=m&api_key={SECRET}"],
    ["--header", f"Authorization: Bearer {SECRET}"],
    [f"sk-{SECRET}"],
    ["--note", f"with hf_{SECRET}, please"],
    ["--task-args.token", SECRET],
    ["--password", SECRET],
    ["--password", f"--{SECRET}", "--steps", "3"],
    ["-p", SECRET],
    [f"SECRETKEY={SECRET}"],
    ["--header", f"X-Api-Key: {SECRET}"],
    ["--header", f"Cookie: session={SECRET}; other=1"],
    ["--task-args", f"x=1,api_key={SECRET}"],
    ["--task-args.settings", f'{{"steps": 3, "api_key": "{SECRET}"}}'],
    ["--url", f"https://host/x?sig={SECRET}&v=1"],
    ["--url", f"https://host/x?X-Amz-Signature={SECRET}"],
    *([f"--task-args.{name}", SECRET] for name in (
        "pw", "apitoken", "accesskey", "sas", "hf_pat", "pass", "dbPassword", "client.secretKey",
        "awsSecretAccessKey", "accountkey", "privateKey", "sessionToken",
    )),
]  # fmt: skip


WORDS = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=40, max_size=60
)
UPPER = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=16, max_size=16)
HEX = st.text("0123456789abcdef", min_size=40, max_size=40)
PREFIXES = (
    "AIzaSy", "npm_", "gsk_", "xai-", "nvapi-", "pplx-", "r8_", "ya29.", "dop_v1_", "tgp_v1_",
    "wandb_v1_", "sk-", "sk-proj-", "sk-ant-api03-", "hf_", "ghp_", "ghr_", "github_pat_", "glpat-",
    "xoxb-", "xapp-", "pypi-",
)  # fmt: skip
FORMS = st.one_of(
    *(WORDS.map(prefix.__add__) for prefix in PREFIXES),
    UPPER.map("AKIA".__add__), UPPER.map("ASIA".__add__), HEX,
    st.tuples(WORDS, WORDS, WORDS).map(lambda three: "eyJ" + ".".join(three)),
)  # fmt: skip
PLACES = ["{}", "with {}, please", "k={}", "'{}'", '"{}"', "({})", "a\n{}\nb", "{};", "key: {}"]


@given(FORMS, st.sampled_from(PLACES))
def test_keys_of_usual_forms_are_masked_wherever_they_stand(secret, place):
    text = place.format(secret)
    masked = masks.text(text)
    assert secret not in masked and secret[12:] not in masked and masks.MASK in masked
    assert masks.text(masked) == masked
    assert secret not in str(masks.command(["--note", text]))
    assert secret not in str(masks.values({"a": [{"b": text}]}))


@given(st.text("abcXYZ019+/\n=", min_size=1, max_size=80), st.sampled_from(["", "RSA ", "EC "]))
def test_private_keys_are_masked_whole(body, kind):
    begin, end = (f"-----{word} {kind}PRIVATE KEY-----" for word in ("BEGIN", "END"))
    for text in (f"a {begin}\n{body}\n{end} b", f"a {begin}\n{body}"):
        assert masks.text(text).rstrip("b ") == f"a {masks.MASK}"


@given(WORDS, st.sampled_from([":", "me:"]))
def test_a_user_and_a_password_in_base64_are_masked(secret, user):
    code = base64.b64encode(f"{user}{secret}".encode()).decode()
    assert code not in masks.text(f"Basic {code}")


@pytest.mark.parametrize("text", ["SECRETKEY=abc", "a X_API_KEY=abc b", "HF_TOKEN=abc; x"])
def test_variables_named_after_a_secret_are_masked_within_a_text(text):
    assert "abc" not in masks.text(text) and "=***" in masks.text(text)


def test_a_secret_of_digits_is_masked():
    assert masks.values({"task_args": {"password": 123456, "digits": 3}}) == {
        "task_args": {"password": masks.MASK, "digits": 3}
    }


def test_no_recipe_holds_what_looks_like_a_secret():
    """Else it would be refused."""
    for name in (*recipes.names(), *algorithms.names()):
        plain = json.loads(json.dumps(configs.to_dict(recipes.load(name))))
        assert masks.values(plain) == plain, name


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_is_saved_with_its_secret(words, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["jaxrl", "train", *words])
    rundir.save_config(tmp_path, tiny.config(tmp_path))
    text = (tmp_path / "config.json").read_text()
    assert SECRET not in text and masks.MASK in text
    saved = json.loads(text)["command"]
    assert saved[:2] == ["jaxrl", "train"] and len(saved) == len(words) + 2
    assert saved[-2:] == ["--steps", "3"] or "--steps" not in words


@given(st.lists(st.sampled_from(["--steps", "3", "--x.api-key", "a", "K_TOKEN=b", "--y"])))
def test_masking_again_changes_nothing(words):
    once = masks.command(words)
    assert masks.command(once) == once and len(once) == len(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--rollout.max-new-tokens", "64", "--packing.micro-batch-tokens", "256"],
        ["--key-variable", "OPENAI_API_KEY"],
        ["--model", "gs://bucket/run@40", "--task", "my.module:function"],
        ["--objective.policy-args.clip_high=0.28", "--run-dir", "runs/key-sk-1"],
        ["--rollout.system", "Think: 3+4=7; ask, e.g. me@host?"],
        ["--rollout.system", "Basic arithmetic: the answer key: 42; a token is a word"],
        ["--model", "a/b@0123456789abcdef0123456789abcdef01234567"],
        ["--data", "blobs/0123456789abcdef0123456789abcdef01234567/train.jsonl"],
        ["--run-dir", "runs/r8_long_learning_rate_schedule", "--seed", "3"],
        ["--objective.args.pass_rate", "0.5", "--monkey", "3", "--task-args.signature", "f(x)"],
    ],
)
def test_what_is_no_secret_stays(words):
    assert masks.command(words) == words


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_args.api_key", SECRET),
        ("task_args.path", f"https://me:{SECRET}@host/data.jsonl"),
        ("model", f"https://{SECRET}@host/m"),
        ("rollout.system", f"use sk-{SECRET}"),
    ],
)
def test_a_config_with_a_secret_is_refused_before_it_is_saved(name, value, tmp_path):
    config = configs.replaced(tiny.config(tmp_path / "run"), name, value)
    with pytest.raises(ValueError, match=f"^{name} holds .* environment") as refusal:
        rundir.prepare(config, print)
    assert SECRET not in str(refusal.value) and not (tmp_path / "run").exists()
    rundir.prepare(tiny.config(tmp_path / "run"), print)
