"""The command that starts a program in bubblewrap."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

CHILD, CHILD_INSIDE = Path(__file__).with_name("sandbox_child.py"), "/supervisor.py"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives")


def command(scratch: str, file_mb: int, user: int) -> list[str]:
    """The supervisor in namespaces of its own; it gives up the capabilities it is started with.

    Args:
      scratch: directory of the program's files.
      file_mb: size of what the program may write.
      user: id of the user that the program runs as; 0 for one of a namespace of users.
    """
    wrapped = [
        shutil.which("bwrap") or "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net",
        "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent",
        "--new-session", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN",
        "--proc", "/proc", "--dev", "/dev",
    ]  # fmt: skip
    if user:  # the child changes user; in a user namespace of root's, no process limit would hold
        wrapped += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        wrapped += ["--unshare-user", "--uid", "65534", "--gid", "65534", *_no_more_users()]
    wrapped += ["--perms", "0755", "--dir", "/etc"]
    for path in _SYSTEM:
        if os.path.islink(path):
            wrapped += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            wrapped += ["--ro-bind", path, path]
    for path in sorted({sys.base_prefix, sys.prefix}):
        if not path.startswith("/usr/"):
            for parent in reversed(Path(path).parents[:-1]):  # else made readable by root alone
                wrapped += ["--perms", "0755", "--dir", str(parent)]
            wrapped += ["--ro-bind", path, path]
    wrapped += ["--ro-bind", str(CHILD), CHILD_INSIDE, "--ro-bind", scratch, "/given"]
    wrapped += ["--perms", "0777", "--size", str(file_mb << 20), "--tmpfs", "/scratch"]
    wrapped += ["--remount-ro", "/", "--remount-ro", "/dev"]  # no other place to fill with data
    return [*wrapped, "--", sys.executable, "-I", "-S", CHILD_INSIDE]


@functools.cache
def _no_more_users() -> list[str]:
    """The option against nested user namespaces, where bubblewrap has it (0.8)."""
    options = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False)
    return ["--disable-userns"] if "--disable-userns" in options.stdout + options.stderr else []
