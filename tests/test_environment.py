"""tools/environment.sh chooses an interpreter and an installer, goes on where it was stopped, and renews what is out of date."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "cat", "chmod", "cksum", "dirname", "find", "mkdir", "rm", "rmdir", "sed")
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
# The Python of an environment: this one, whose torchvision does not fit its torch where a file "unfit" lies.
MADE_PYTHON = f"""#!/bin/sh
case "$*" in *"import torchvision") [ ! -e unfit ]; exit ;; esac
exec "{sys.executable}" "$@"
"""
# Stands in for uv: writes down what it is asked, makes environments, and fails where a file "broken" lies.
UV = f"""#!/bin/sh
echo "$@" >>uv.log
case "$1 $2" in
"venv "*)
    for folder; do :; done
    mkdir -p "$folder/bin"
    printf '%s' '{MADE_PYTHON}' >"$folder/bin/python"
    chmod +x "$folder/bin/python" ;;
"python find") exit 1 ;;
"pip install") [ ! -e broken ] ;;
esac
"""

BASE = getattr(sys, "_base_executable", sys.executable)
MADE = f"venv --quiet --no-project --allow-existing --seed --python {BASE} .venv"
INSTALLED = "pip install --quiet --compile-bytecode --python .venv/bin/python --constraint constraints.txt {}"

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
        commands = log.read_text().splitlines() if log.exists() else []
        return done.returncode, (done.stdout + done.stderr).splitlines(), [line for line in commands if line[:6] != "python"]


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


@pytest.mark.parametrize("lacks", ["sys.version_info", "sys.maxsize", "sysconfig.get_config_var(.*)"])
def test_an_interpreter_that_lacks_something_is_passed_over(checkout, lacks):
    """One that is too old, of 32 bits or without a lock: what the script asks of it is answered otherwise."""
    pretended = {"sys.version_info": "(3, 10)", "sys.maxsize": "2**31", "sysconfig.get_config_var(.*)": "True"}[lacks]
    checkout.put("python3", f'#!/bin/sh\nsed "s/{lacks}/{pretended}/" | "{sys.executable}" "$@"\n')
    checkout.put("uv", UV)
    code, printed, commands = checkout.prepare()
    assert (code, len(printed), commands) == (1, 1, [])


def test_the_newest_tested_python_is_taken_and_named(checkout):
    for name in ("python3", "python3.11", "python3.12", "uv"):
        checkout.put(name, UV if name == "uv" else PYTHON)
    checkout.put("python3.13", "#!/bin/sh\nexit 127\n")  # as a shim of a version that is not chosen
    checkout.put("python3.12", f"#!/bin/sh\necho >12\n{PYTHON}")
    code, printed, commands = checkout.prepare()
    assert code == 0 and (checkout.folder / "12").exists()
    assert printed[0].startswith("using Python 3.") and f"({BASE}) and uv, torch of PyPI; installing" in printed[0]
    assert commands == [MADE, INSTALLED.format("--editable .")]


def test_a_python_that_only_uv_knows_is_found(checkout):
    checkout.put("uv", UV.replace("exit 1", f'[ "$6" = 3.12 ] && echo "{sys.executable}"'))
    code, _, commands = checkout.prepare()
    assert code == 0 and commands[0] == MADE


@pytest.mark.parametrize("fits", [True, False])
def test_test_tools_come_with_timm_or_have_it_apart(checkout, fits):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    if not fits:
        (checkout.folder / "unfit").touch()
    _, _, commands = checkout.prepare("dev")
    expected = [MADE, INSTALLED.format("--editable .[dev]"), INSTALLED.format("timm torchvision")]
    if not fits:
        expected += ["pip uninstall --quiet --python .venv/bin/python timm torchvision"]
        expected += [INSTALLED.format("--no-deps --target .venv/vision timm torchvision")]
    assert commands == expected


def test_a_wheel_is_installed_with_nothing_but_what_it_needs(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    (checkout.folder / "dist").mkdir()
    (checkout.folder / "dist" / "it.whl").touch()
    assert checkout.prepare("wheel")[2] == [MADE, INSTALLED.format("dist/it.whl")]
    build = "--no-deps --index-url https://download.pytorch.org/whl/cpu"
    commands = checkout.prepare("wheel", TORCH="cpu")[2]
    assert commands[1:] == [INSTALLED.format(f"{build} torch"), INSTALLED.format("dist/it.whl")]


def test_it_does_nothing_when_nothing_has_changed(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    assert checkout.prepare("dev")[0] == 0
    assert checkout.prepare("dev") == (0, [], [])
    assert checkout.prepare("app") == (0, [], [])  # what tests need holds what the dashboard needs
    with open(checkout.folder / "pyproject.toml", "a") as file:
        file.write("# more\n")
    assert checkout.prepare("app")[2] == [INSTALLED.format("--editable .")]


def test_what_makes_the_site_comes_with_the_test_tools(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    assert checkout.prepare("dev")[0] == 0
    assert INSTALLED.format("--editable .[dev,docs]") in checkout.prepare("docs")[2]
    assert [checkout.prepare(extras) for extras in ("docs", "dev", "app")] == [(0, [], [])] * 3


def test_what_broke_off_is_taken_up_in_the_same_environment(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    (checkout.folder / "broken").touch()
    code, _, commands = checkout.prepare()
    assert code != 0 and commands == [MADE, INSTALLED.format("--editable .")]
    (checkout.folder / "broken").unlink()
    code, _, commands = checkout.prepare()
    assert code == 0 and commands == [INSTALLED.format("--editable .")]


def test_an_environment_without_a_whole_pip_is_made_again(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    checkout.prepare()
    (checkout.folder / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert checkout.prepare()[2] == [MADE, INSTALLED.format("--editable .")]


@pytest.mark.parametrize("change", ["constraints", "torch", "python", "folder"])
def test_an_environment_made_of_something_else_is_renewed(checkout, change):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    checkout.prepare()
    left = checkout.folder / ".venv" / "left"
    left.touch()
    if change == "constraints":
        with open(checkout.folder / "constraints.txt", "a") as file:
            file.write("more==1\n")
    if change in ("python", "folder"):
        made_of = checkout.folder / ".venv" / "made-of"
        old = {"python": "version: Python 3.", "folder": "folder: "}[change].replace("Python ", "")
        made_of.write_text(made_of.read_text().replace(old, old + "0"))
    _, _, commands = checkout.prepare(**({"TORCH": "cpu"} if change == "torch" else {}))
    assert commands[0] == MADE and not left.exists()
    if change == "torch":
        index = "--no-deps --index-url https://download.pytorch.org/whl/cpu"
        assert commands[1:] == [INSTALLED.format(f"{index} torch"), INSTALLED.format("--editable .")]
        assert checkout.prepare() == (0, [], [])  # what was chosen is kept until something else is
        elsewhere = checkout.prepare("dev", TORCH="file:///wheels")[2]
        assert elsewhere[1:3] == [
            INSTALLED.format(f"--no-deps --index-url file:///wheels {name}") for name in ("torch", "torchvision")
        ]


def test_a_folder_that_it_did_not_make_is_left_alone(checkout):
    checkout.put("python3", PYTHON)
    checkout.put("uv", UV)
    (checkout.folder / ".venv").mkdir()
    (checkout.folder / ".venv" / "mine").touch()
    code, printed, _ = checkout.prepare()
    assert code == 1 and len(printed) == 1 and "move it away" in printed[0]
    assert (checkout.folder / ".venv" / "mine").exists()
    (checkout.folder / ".venv" / "mine").unlink()
    assert checkout.prepare()[0] == 0  # an empty one is nobody's
