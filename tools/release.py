"""Build what is released into ``dist/`` and try it as a user would: ``python -m tools.release``.

The source distribution is built, and the wheel from it. Their metadata are checked, and the wheel is installed into an
environment of its own, where the README's code has to print what the README says and the dashboard has to answer. Nothing is
uploaded. At the end stands what is still to be done before that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import diffscope
from tools.browser import free_port, wait_until_up

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BARE = ROOT / ".venvs" / "release"
LARGEST = 100_000_000  # bytes of a file that PyPI takes
PATIENCE = 120  # seconds until the dashboard answers


def build() -> list[Path]:
    """Build both distributions of this version alone, and check their names, sizes and metadata."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST))
    files = sorted(DIST.iterdir())
    stem = f"diffscope_attention-{diffscope.__version__}"
    if [file.name for file in files] != [f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"]:
        raise RuntimeError(f"dist/ holds {', '.join(file.name for file in files)}, and not a wheel and an sdist of {stem}")
    for file in files:
        if file.stat().st_size > LARGEST:
            raise RuntimeError(f"{file.name} has {file.stat().st_size / 1e6:.0f} MB, and PyPI takes {LARGEST / 1e6:.0f}")
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    return files


def try_wheel() -> None:
    """Install the wheel into an environment of its own, outside of which nothing of the checkout is seen, and use it."""
    shutil.rmtree(BARE, ignore_errors=True)
    run("tools/environment.sh", "wheel", str(BARE.relative_to(ROOT)))
    python, command = (BARE / "bin" / name for name in ("python", "diffscope"))
    with tempfile.TemporaryDirectory() as folder:
        script = "import diffscope; print(diffscope.__version__, diffscope.__file__)"
        version, path = subprocess.check_output([python, "-I", "-c", script], cwd=folder, text=True).strip().split(" ", 1)
        if version != diffscope.__version__ or not Path(path).is_relative_to(BARE):
            raise RuntimeError(f"the environment has diffscope {version} of {path}, and not the wheel of {diffscope.__version__}")
        run(python, "-I", ROOT / "tools" / "readme.py", ROOT / "README.md", cwd=folder)
        try_dashboard(command, folder)
    shutil.rmtree(BARE)


def try_dashboard(command: Path, folder: str) -> None:
    """Start the dashboard in a folder, and wait until it answers."""
    port = free_port()
    server = subprocess.Popen([command, "app", "--port", str(port)], cwd=folder)
    try:
        wait_until_up(server, f"http://localhost:{port}", PATIENCE)
    finally:
        server.terminate()
        server.wait(30)


def remaining() -> list[str]:
    """Return what has to be done by hand before these files are uploaded."""
    version = diffscope.__version__
    left = []
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout:
        left.append("commit what has changed, and build again")
    if not re.search(rf"^## \[?{re.escape(version)}\b.*\d{{4}}-\d\d-\d\d", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M):
        left.append(f"give CHANGELOG.md a heading for {version} with the date")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    if not project.get("urls"):
        left.append("give the repository's address in [project.urls], and to the README's links and pictures, which PyPI shows")
    if "is not on PyPI" in (ROOT / "README.md").read_text("utf-8"):
        left.append("say in README.md how it is installed from PyPI")
    return left


def run(*command: str | Path, cwd: str | Path = ROOT) -> None:
    """Run a command, whose failure ends the release."""
    print("$", *command, flush=True)
    if subprocess.run(command, cwd=cwd).returncode:
        raise RuntimeError(f"{Path(command[0]).name} {' '.join(map(str, command[1:]))} failed; what it printed above says why")


def main() -> int:
    """Build, check and try; 1 if something does not hold."""
    start = time.monotonic()
    os.environ.pop("PYTHONPATH", None)  # by which the checkout would be seen where the wheel is tried
    try:
        files = build()
        try_wheel()
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(f"dist/{file.name}: {file.stat().st_size / 1e6:.1f} MB")
    print(f"built and tried in {time.monotonic() - start:.0f} s")
    print("before it is uploaded:", *(remaining() or ["nothing is left to do"]), sep="\n- ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
