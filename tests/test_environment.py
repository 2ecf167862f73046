"""tools/environment.sh chooses an interpreter and an installer, goes on where it was stopped, and renews what is out of date."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "cat", "chmod", "cksum", "dirname", "mkdir", "rm")
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
# Stands in for uv: writes down what it is asked, makes environments that run this Python, and fails where a file "broken" lies.
UV = f"""#!/bin/sh
echo "$@" >>uv.log
case "$1 $2" in
"venv "*)
    for folder; do :; done
    mkdir -p "$folder/bin"
    printf '%s' '{PYTHON}' >"$folder/bin/python"
    chmod +x "$folder/bin/python" ;;
"python find") exit 1 ;;
"pip install") [ ! -e broken ] ;;
esac
"""

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a POSIX shell script")


class Checkout:
    """A folder with what the script reads, and a PATH of nothing but plain tools and what a test puts there."""

    def __init__(self, folder):
        self.folder, self.bin = folder / "checkout", folder / "bin"
        (self.folder / "tools").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "tools" / "environment.sh", self.folder / "tools")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name))

    def put(self, name, script):
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def prepare(self, extras="app", **settings):
        """Run the script; give its exit code, what it printed and what it asked of uv."""
        (self.folder / "uv.log").unlink(missing_ok=True)
        environment = {"PATH": str(self.bin), "HOME": str(self.folder), **settings}
        script = self.folder / "tools" / "environment.sh"
        done = subprocess.run(["sh", script, extras], env=environment, capture_output=True, text=True)
        log = self.folder / "uv.log"
        asked = log.read_text().splitlines() if log.exists() else []
        return done.returncode, (done.stdout + done.stderr).splitlines(), [line for line in asked if line[:6] != "python"]


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_without_a_python_it_says_so_in_one_line(checkout):
    checkout.put("python3", "#!/bin/sh\nexit 1\n")  # too old: this is all that the script hears of it
    code, printed, _ = checkout.prepare()
    assert code == 1
    (line,) = printed
    assert line.startswith("error: there is no Python 3.11 or later")


def test_a_python_asked_for_that_does_not_serve_is_named(checkout):
    code, printed, _ = checkout.prepare(PYTHON="python9.9")
    assert code == 1
    (line,) = printed
    assert line.startswith("error: python9.9 is not a Python 3.11 or later")


def test_the_newest_tested_python_is_taken_and_named(checkout):
    for name in ("python3", "python3.11", "python3.12", "uv"):
        checkout.put(name, UV if name == "uv" else PYTHON)
    checkout.put("python3.13", "#!/bin/sh\nexit 127\n")  # as a shim of a version that is not chosen
    code, printed, asked = checkout.prepare()
    assert code == 0
    assert printed[0].startswith("using python3.12 (Python 3.") and " and uv; installing" in printed[0]
    assert "--python python3.12 .venv" in asked[0]


def test_it_does_nothing_when_nothing_has_changed(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    assert [line.split()[0] for line in checkout.prepare("dev")[2][:3]] == ["venv", "pip", "pip"]
    assert checkout.prepare("dev") == (0, [], [])
    assert checkout.prepare("app") == (0, [], [])  # what tests need holds what the dashboard needs


def test_what_broke_off_is_taken_up_in_the_same_environment(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    (checkout.folder / "broken").touch()
    code, _, asked = checkout.prepare()
    assert code != 0 and [line.split()[0] for line in asked] == ["venv", "pip"]
    (checkout.folder / "broken").unlink()
    code, _, asked = checkout.prepare()
    assert code == 0 and [line.split()[0] for line in asked] == ["pip"]


@pytest.mark.parametrize("change", ["constraints", "torch", "python"])
def test_an_environment_made_of_something_else_is_renewed(checkout, change):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    checkout.prepare()
    left = checkout.folder / ".venv" / "left"
    left.touch()
    if change == "constraints":
        with open(checkout.folder / "constraints.txt", "a") as file:
            file.write("more==1\n")
    if change == "python":
        made_of = checkout.folder / ".venv" / "made-of"
        made_of.write_text(made_of.read_text().replace("Python 3.", "Python 2."))
    _, _, asked = checkout.prepare(**({"TORCH": "cpu"} if change == "torch" else {}))
    assert asked[0].startswith("venv") and not left.exists()
    if change == "torch":
        assert asked[1].endswith("--no-deps --index-url https://download.pytorch.org/whl/cpu torch")


def test_a_folder_that_it_did_not_make_is_left_alone(checkout):
    checkout.put("python3", PYTHON)
    (checkout.folder / ".venv").mkdir()
    (checkout.folder / ".venv" / "mine").touch()
    code, printed, _ = checkout.prepare()
    assert code == 1 and len(printed) == 1 and "move it away" in printed[0]
    assert (checkout.folder / ".venv" / "mine").exists()
