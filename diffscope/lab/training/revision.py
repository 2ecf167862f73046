"""The revision of the code that runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from diffscope import __version__


def revision() -> str:
    """The last commit that changed the package, with "+" where it was changed since; outside of a checkout its version."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[2]), *arguments, "--", "."]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("log", "-1", "--format=%h")
        changed = git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return __version__
    if not commit:
        return __version__
    return f"{commit}+" if changed else commit
