"""The document of promises is what the tests promise."""

import shutil
import subprocess
import sys

import pytest

from tests import exactness


def test_the_document_is_up_to_date():
    assert exactness.DOCUMENT.read_text() == exactness.markdown(), (
        "run `python -m tests.exactness > docs/exactness.md`"
    )


@pytest.mark.slow
@pytest.mark.parity
def test_what_is_tested_of_families_is_up_to_date(tmp_path):
    pytest.importorskip("transformers")
    page = tmp_path / "models.md"
    shutil.copy(exactness.MODELS, page)
    command = [sys.executable, "-m", "tests.exactness", "families", str(page)]
    subprocess.run(command, cwd=exactness.TESTS.parent, check=True, stdout=subprocess.DEVNULL)
    assert page.read_text() == exactness.MODELS.read_text(), (
        "run `python -m tests.exactness families`"
    )


def test_every_kind_of_mark_is_read_and_sorted_by_area(tmp_path):
    files = {
        "b/test_one.py": '@pytest.mark.slow\n@pytest.mark.exact("a | b")\ndef test_x(): ...\n',
        "a/test_two.py": 'same = pytest.mark.exact("as " "one")\n@same\ndef test_y(): ...\n',
        "a/test_three.py": "@pytest.mark.slow\ndef test_z(): ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    root = tmp_path.name
    assert exactness.promises(tmp_path) == [
        ("a", "as one", f"{root}/a/test_two.py::test_y"),
        ("b", "a | b", f"{root}/b/test_one.py::test_x"),
    ]
    assert r"| a \| b | `" in exactness.markdown(tmp_path)


def test_a_promise_that_is_computed_is_refused(tmp_path):
    (tmp_path / "test_one.py").write_text("@pytest.mark.exact(NAME)\ndef test_x(): ...\n")
    with pytest.raises(ValueError, match=r"test_one\.py:1: .* is one string"):
        exactness.promises(tmp_path)
