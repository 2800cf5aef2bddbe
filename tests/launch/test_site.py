"""The documentation site builds without a warning, and its notebooks run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import hooks

ROOT = Path(__file__).parents[2]


def _text(markdown, source="own-data.md"):
    file = type("File", (), {"src_uri": source})
    return hooks.on_page_markdown(markdown, page=type("Page", (), {"file": file}))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("[a page](choose.md#top)", "[a page](choose.md#top)"),
        ("[the loop](../jaxrl/run/loop.py)", "the loop (`jaxrl/run/loop.py`)"),
        ("[`jaxrl/run/loop.py`](../jaxrl/run/loop.py)", "`jaxrl/run/loop.py`"),
        ("[a notebook](look.ipynb)", "a notebook (`docs/look.ipynb`)"),
        ("[elsewhere](https://example.org/a.py)", "[elsewhere](https://example.org/a.py)"),
    ],
)
def test_links_to_what_is_no_page(given, shown):
    assert _text(given) == shown


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert listed == {page for page in pages if not page.startswith("runs/")}


@pytest.mark.parity
def test_the_site_builds_without_a_warning(tmp_path):
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert not done.returncode, done.stderr[-3000:]
    assert "WARNING -" not in done.stderr
    for page, said in (("api", "ObjectiveConfig"), ("pod", "v5e-8"), ("troubleshooting", "KL")):
        assert said in (tmp_path / page / "index.html").read_text()
    assert (tmp_path / "search" / "search_index.json").stat().st_size > 100_000


@pytest.mark.sample(1)
@pytest.mark.parity
@pytest.mark.parametrize("name", ["own-data", "objective", "look"])
def test_a_notebook_runs(name, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(ROOT / "docs" / f"{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=400, resources=where).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert outputs[-1], "the last cell shows something"
