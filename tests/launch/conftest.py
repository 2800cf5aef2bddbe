"""What tests of the command line share."""

import subprocess

import pytest

from jaxrl.launch import effects_claims, effects_table


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """An empty directory of results under Git, and one method."""
    folder = tmp_path / "effects"
    folder.mkdir()
    for command in (
        ["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"],
    ):  # fmt: skip
        subprocess.run(["git", *command], cwd=folder, check=True)
    monkeypatch.setattr(effects_table, "RESULTS", folder)
    monkeypatch.setattr(effects_table, "TABLE", tmp_path / "effects" / "README.md")
    monkeypatch.setattr(effects_claims, "PAGE", tmp_path / "effects" / "effects.md")
    return folder
