"""Models by name: the Hub's local cache, downloads, and directories that hold one file."""

from __future__ import annotations

import importlib.util
import json

import pytest

from jaxrl.models import catalog

COMMIT = "0123456789abcdef"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no network, and a working directory without models."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub" / "models--acme--tiny-1.5B"


def _snapshot(repository, commit=COMMIT, files=("config.json", "model.safetensors")):
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).write_text("{}")
    return snapshot


def test_a_hub_id_is_the_snapshot_of_main(cache):
    snapshot = _snapshot(cache)
    _snapshot(cache, "another")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    assert catalog.is_hub("acme/tiny-1.5B")
    assert catalog.locate("acme/tiny-1.5B") == snapshot


def test_the_cache_may_lie_in_hf_home(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    snapshot = _snapshot(tmp_path / "hub" / "models--acme--tiny")
    assert catalog.cached("acme/tiny") == snapshot


def test_a_snapshot_that_lacks_a_shard_is_not_whole(cache):
    index = "model.safetensors.index.json"
    snapshot = _snapshot(cache, files=("config.json", index, "a.safetensors"))
    shards = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (snapshot / index).write_text(json.dumps(shards))
    assert catalog.cached("acme/tiny-1.5B") is None
    (snapshot / "b.safetensors").write_text("")
    assert catalog.cached("acme/tiny-1.5B") == snapshot


def test_without_the_library_the_error_says_what_to_run(cache, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError) as error:
        catalog.locate("acme/tiny-1.5B")
    assert "run: pip install huggingface_hub && hf download acme/tiny-1.5B" in str(error.value)


def test_a_download_goes_into_the_cache_or_says_what_to_run(cache, monkeypatch):
    library = pytest.importorskip("huggingface_hub")

    def download(name, **_):
        assert name == "acme/tiny-1.5B"
        return str(_snapshot(cache))

    def fail(name, **_):
        raise OSError("no route to host\nand more")

    monkeypatch.setattr(library, "snapshot_download", fail)
    with pytest.raises(FileNotFoundError, match=r"\(no route to host\).*hf download acme/tiny"):
        catalog.locate("acme/tiny-1.5B")
    monkeypatch.setattr(library, "snapshot_download", download)
    assert catalog.locate("acme/tiny-1.5B") == cache / "snapshots" / COMMIT
    monkeypatch.setattr(library, "snapshot_download", fail)
    assert catalog.locate("acme/tiny-1.5B") == cache / "snapshots" / COMMIT


def test_a_name_in_an_existing_folder_is_a_path(cache, tmp_path):
    (tmp_path / "runs").mkdir()
    assert not catalog.is_hub("runs/mistyped")
    with pytest.raises(FileNotFoundError, match="neither a path nor one of"):
        catalog.locate("runs/mistyped")


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path):
    (tmp_path / "model.gguf").write_text("")
    assert catalog.locate(str(tmp_path)) == tmp_path / "model.gguf"
    (tmp_path / "other.gguf").write_text("")
    assert catalog.locate(str(tmp_path)) == tmp_path
