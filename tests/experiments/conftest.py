"""What tests of the laboratory share."""

import subprocess

import pytest

from experiments.effects import claims_page, table


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """An empty directory of results under Git, and one method."""
    folder = tmp_path / "effects"
    folder.mkdir()
    for command in (
        ["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"],
    ):  # fmt: skip
        subprocess.run(["git", *command], cwd=folder, check=True)
    monkeypatch.setattr(table, "RESULTS", folder)
    monkeypatch.setattr(table, "TABLE", tmp_path / "effects" / "README.md")
    monkeypatch.setattr(claims_page, "PAGE", tmp_path / "effects" / "effects.md")
    monkeypatch.setattr(claims_page, "PICTURE", tmp_path / "effects" / "effects.svg")
    monkeypatch.setattr(claims_page, "SHORT", tmp_path / "effects" / "short.json")
    return folder
