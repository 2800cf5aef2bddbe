"""`jaxrl merge` and `jaxrl weights` on two small models."""

import json

import jax
import numpy as np
import pytest

from jaxrl.launch import cli
from jaxrl.models import decoder
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from tests.data import words

SHAPE = DecoderConfig(len(words.WORDS), 16, 32, 2, 2, 2, 8, max_positions=64)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, two models that each changed one layer of it, and one of another width."""
    rng = np.random.default_rng(0)

    def drawn(shape):
        leaves = decoder.abstract(shape)[0]
        return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), leaves)

    base = drawn(SHAPE)
    made = {"base": (SHAPE, base)}
    for layer in range(2):
        weight = base["layers"]["mlp"]["up"]
        moved = np.where(np.arange(2)[:, None, None] == layer, 1.5 * weight, weight)
        mlp = base["layers"]["mlp"] | {"up": moved}
        made[f"model{layer}"] = SHAPE, base | {"layers": base["layers"] | {"mlp": mlp}}
    other = DecoderConfig(len(words.WORDS), 8, 16, 1, 1, 1, 8, max_positions=64)
    made["other"] = other, drawn(other)
    folder = tmp_path_factory.mktemp("models")
    for name, (shape, params) in made.items():
        (folder / name).mkdir()
        words.tokenizer(folder / name)
        huggingface.save(folder / name, shape, params, extra={"eos_token_id": 1})
    return folder


@pytest.mark.broad
def test_merged_models_and_what_changed(models, tmp_path, capsys):
    base, one, two = (str(models / name) for name in ("base", "model0", "model1"))
    out = tmp_path / "merged"
    command = ["merge", one, two, "--out", str(out), "--method", "ram", "--base", base]
    assert cli.main(command) == 0
    merged = huggingface.load(out)[1]["layers"]["mlp"]["up"]
    np.testing.assert_allclose(merged, 1.5 * huggingface.load(base)[1]["layers"]["mlp"]["up"])
    assert cli.main(command) == 2
    assert "not an empty directory" in capsys.readouterr().err

    plot = tmp_path / "weights.png"
    assert cli.main(["weights", base, str(out), "--json", "--plot", str(plot)]) == 0
    report = json.loads(capsys.readouterr().out)
    figures = {(each["name"], each["layer"]): each for each in report["parameters"]}
    assert figures["layers/mlp/up", 1]["unchanged"] < 0.1
    assert figures["layers/mlp/up", 1]["spectral_shift"] == pytest.approx(0.5, abs=1e-5)
    assert figures["layers/mlp/up", 1]["angle"] == pytest.approx(0, abs=0.05)
    assert figures["layers/attention/q", 0]["unchanged"] == 1
    assert 0.5 < report["whole"]["unchanged"] < 1 and len(report["layers"]) == 2
    assert plot.stat().st_size > 1000
    assert cli.main(["weights", base, str(out)]) == 0
    assert "unchanged" in capsys.readouterr().out


def test_refusals(models, tmp_path, capsys):
    base, one, other = (str(models / name) for name in ("base", "model0", "other"))
    out = ["--out", str(tmp_path / "out")]
    for command, says in (
        (["merge", one, other, *out], "hidden_size 8, not 16"),
        (["merge", one, *out, "--method", "ties"], "--base MODEL"),
        (["merge", one, *out], "two or more models; 1 are named"),
        (["merge", *out], "name runs or models"),
        (["weights", base], "name two runs or models"),
        (["weights", base, other], "different shapes"),
    ):
        assert cli.main(command) == 2
        assert says in " ".join(capsys.readouterr().err.split())
