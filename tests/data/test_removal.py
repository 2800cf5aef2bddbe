"""Directories are removed whatever a program has made of them, and no mess of one is an error."""

import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from jaxrl.data.sandbox import removal, scratch
from jaxrl.data.sandbox import runner as sandbox

MESSES = {
    "deep": "import os\nfor i in range(3000): os.mkdir('d'); os.chdir('d')",
    "deep and closed": (
        "import os\nfor i in range(1200):\n    os.mkdir('d'); os.chdir('d')\n"
        "    if i % 7 == 0: open('f', 'w').close()\n    if i % 100 == 0: os.chmod('.', 0o300)"
    ),
    "wide": "import os\nfor i in range(2000): os.makedirs(f'{i % 40}/{i}')",
    "no rights": "import os\nos.makedirs('a/b/c'); open('a/b/c/f', 'w').close()\n"
    "for p in ('a/b/c', 'a/b', 'a'): os.chmod(p, 0)",
    "links": "import os\nos.symlink('/etc', 'l'); os.symlink('.', 's'); os.symlink('s', 't')\n"
    "os.mkdir('d'); os.symlink('../d', 'd/d')",
    "odd names": "import os\nfor n in (b'\\xff', b'\\n', b'-rf', b' ', b'a' * 255): os.mkdir(n)",
    "pipes": "import os\nos.mkfifo('p')\nimport socket\ns = socket.socket(1); s.bind('u')",
    "own rights": "import os\nos.makedirs('a/b'); os.chmod('.', 0)",
    "renamed": "import os\nhere = os.getcwd()\ntry: os.rename(here, here + '-x')\n"
    "except OSError: pass",
    "replaced by a link": "import os\nhere = os.getcwd()\n"
    "try: os.rename(here, here + '-x'); os.symlink('/etc', here)\nexcept OSError: pass",
    "replaced by a file": "import os\nhere = os.getcwd()\n"
    "try: os.rename(here, here + '-x'); open(here, 'w').close()\nexcept OSError: pass",
    "removed": "import os\nhere = os.getcwd()\ntry: os.rmdir(here)\nexcept OSError: pass",
}  # fmt: skip


ABOVE = {
    "the directory above renamed": "import os\nhere = os.path.dirname(os.getcwd())\n"
    "try: os.rename(here, here + '-x')\nexcept OSError: pass",
}
"""Only for a program in the sandbox: these reach for what is around the working directory."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory for temporary files, of a short name and open as /tmp is."""
    made = tempfile.mkdtemp(prefix="t", dir="/tmp")
    os.chmod(made, 0o1777)
    monkeypatch.setenv("TMPDIR", made)
    monkeypatch.setattr(tempfile, "tempdir", made)
    yield made
    subprocess.run(["rm", "-rf", made], check=False)


@pytest.mark.parametrize("mess", MESSES)
def test_a_mess_is_removed(mess, tmp_path):
    target = tmp_path / "x" / "files"
    target.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("kept")
    (target / "link").symlink_to(secret)
    (target / "directory").symlink_to(tmp_path)
    subprocess.run([sys.executable, "-c", MESSES[mess]], cwd=target, check=True)
    removal.remove(target.parent)
    if "rename" not in mess and "replaced" not in mess:
        assert not target.parent.exists()
    assert secret.read_text() == "kept"


def test_what_is_not_there_or_no_directory_is_no_error(tmp_path):
    removal.remove(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/etc")
    removal.remove(tmp_path / "file")
    removal.remove(tmp_path / "link")
    assert not list(tmp_path.iterdir()) and os.path.isdir("/etc")


@pytest.mark.sample(3, broad=3)
@pytest.mark.parametrize("mess", [*MESSES, *ABOVE])
def test_a_mess_in_the_sandbox_is_no_error_and_stays_nowhere(mess, place):
    isolation = sandbox.strongest()
    program = [sys.executable, "-I", "-S", "-c", (MESSES | ABOVE)[mess] + "\nprint('end')"]
    for _ in range(2):
        outcome = sandbox.run(program, limits=sandbox.Limits(wall_s=20), isolation=isolation)
        assert outcome.end == "exit"
    assert os.listdir(place) == []


@pytest.mark.sample(3, broad=3)
@pytest.mark.skipif(os.geteuid() != 0, reason="another user is for root")
@pytest.mark.parametrize("mess", [*MESSES, *ABOVE])
def test_a_mess_of_another_user_is_no_error_in_the_fallback(mess, place):
    isolation = sandbox.Isolation("rlimits", True)
    shell = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    program = [shell, "-I", "-S", "-c", (MESSES | ABOVE)[mess] + "\nprint('end')"]
    try:
        outcome = sandbox.run(program, limits=sandbox.Limits(wall_s=20), isolation=isolation)
    except sandbox.StartError as error:
        pytest.skip(f"no interpreter for another user: {error}")
    assert outcome.end == "exit"
    assert os.listdir(place) == []


@pytest.mark.sample(3, broad=3)
@pytest.mark.parametrize("mess", MESSES)
def test_a_sweep_removes_a_mess_and_never_raises(mess, place):
    left = os.path.join(place, "jaxrl-scoring-left")
    os.makedirs(left)
    subprocess.run([sys.executable, "-c", MESSES[mess]], cwd=left, check=True)
    scratch.sweep()
    found = [os.path.join(place, name) for name in os.listdir(place)]
    assert not [path for path in found if os.path.isdir(path) and not os.path.islink(path)]
    kept = scratch.Scratch()
    subprocess.run([sys.executable, "-c", MESSES[mess]], cwd=kept.name, check=True)
    kept.cleanup()
    assert not os.path.isdir(kept.name)


def test_the_fallback_does_not_run_as_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    tried = []

    def run(program, *, isolation, **_):
        tried.append(isolation)
        raise sandbox.StartError("Permission denied")

    monkeypatch.setattr(sandbox, "run", run)
    with pytest.raises(sandbox.Unavailable, match="use a Python that other users can read"):
        sandbox.strongest.__wrapped__()
    assert tried and all(each.own_user for each in tried)
