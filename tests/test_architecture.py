"""Rooms use only the libraries they may, and nothing runs code from a file; import-linter keeps the floors (pyproject.toml)."""

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "diffscope"

CORE = {"torch", "transformers", "numpy", "scipy", "xarray", "safetensors"}
# use no more
PLAIN = (
    "attention",
    "attribution",
    "capture",
    "conformance",
    "edits",
    "evidence",
    "families",
    "hypotheses",
    "instruments",
    "opening",
    "prompts",
    "proof",
    "readings",
    "scope",
)
LIBRARIES = {
    **dict.fromkeys(PLAIN, CORE),
    "cards": set(),
    "errors": set(),
    "fields": set(),
    "latex": set(),
    "lazily": set(),
    "numbers": set(),
    "render": set(),
    "models": CORE | {"diffusers", "huggingface_hub", "timm"},
    "stats": CORE | {"triton"},
    "storage": CORE | {"pandas", "pyarrow", "zarr"},
    "tasks": CORE | {"tokenizers", "pyarrow", "datasets"},
    "lab": CORE | {"filelock", "huggingface_hub", "ray", "tensorboardX"},
    "monitoring": CORE | {"filelock", "lightning"},
    "lens": CORE | {"transformer_lens"},
    "figures": {"numpy", "xarray", "plotly", "matplotlib", "PIL"},
    "views": {"numpy", "xarray", "safetensors", "anywidget", "traitlets"},
    "tables": {"numpy", "pandas", "pyarrow", "scipy", "xarray"},
    "cli": {"typer", "rich"},
    "__init__": set(),
    "__main__": set(),
    "app": CORE | {"pandas", "plotly", "starlette", "streamlit"},
}


def library_files():
    return sorted(PACKAGE.rglob("*.py"))


def app_files():
    return sorted((ROOT / "app").rglob("*.py"))


def room_of(path):
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).with_suffix("").parts[0]
    return "app"


@cache
def nodes_of(path):
    """Every import and every call of a file, wherever in the file it is; read once for all tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def imported(path):
    """(line, dotted name) of everything a file imports."""
    package = path.relative_to(ROOT).parent.parts
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, node.module) if node.module else above)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def name_of(function):
    """What is called, as it is written: a name, or a name of a module."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return getattr(function, "id", "")


def say(path, line, what):
    return f"{path.relative_to(ROOT)}:{line} {what}"


def test_only_the_command_line_imports_the_public_names():
    """They reach everywhere; import-linter does not see them, since the package loads them when they are used."""
    rooms = {room_of(path) for path in library_files()}
    wrong = []
    for path in library_files():
        for line, dotted in imported(path):
            top, _, rest = dotted.partition(".")
            if top == "diffscope" and rest.partition(".")[0] not in rooms | {"__version__"} and room_of(path) != "cli":
                wrong.append(say(path, line, f"imports the public name {dotted}"))
    assert not wrong, "\n".join(wrong)


def test_a_room_uses_only_its_libraries():
    wrong = []
    for path in library_files() + app_files():
        room = room_of(path)
        known = sys.stdlib_module_names | LIBRARIES.get(room, set()) | {"diffscope"}
        if room == "app":
            known |= {file.stem for file in app_files()} | {"app_pages", "blocks", "amplifier"}
        wrong += [
            say(path, line, f"imports {dotted}") for line, dotted in imported(path) if dotted.partition(".")[0] not in known
        ]
    assert not wrong, "\n".join(wrong)


def test_nothing_prints_or_runs_code_from_a_file():
    wrong = []
    for path in library_files() + app_files():
        for node in nodes_of(path):
            called = name_of(node.func) if isinstance(node, ast.Call) else ""
            if called in ("print", "torch.load", "torch.save", "eval", "exec"):
                wrong.append(say(path, node.lineno, f"calls {called}"))
        for line, dotted in imported(path):
            if dotted.partition(".")[0] in ("pickle", "marshal", "shelve"):
                wrong.append(say(path, line, f"imports {dotted}"))
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(r"(trust_remote_code|allow_pickle)\W*[=:]\s*True", text):
                wrong.append(say(path, line, "trusts what it opens"))
    assert not wrong, "\n".join(wrong)


def test_a_planted_import_upwards_is_found(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "diffscope", ignore=shutil.ignore_patterns("bundled", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "diffscope" / "stats" / "planted.py").write_text("def f():\n    from diffscope.capture import Capture\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1 and "diffscope.stats.planted -> diffscope.capture" in done.stdout, done.stdout + done.stderr


def test_a_planted_function_without_types_is_found(tmp_path):
    (tmp_path / "planted.py").write_text("def mass(a1, keys):\n    return a1[..., keys].sum(-1)\n")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache"]
    done = subprocess.run([*command, tmp_path / "planted.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "missing a type annotation" in done.stdout, done.stdout + done.stderr


def test_imports_are_seen_wherever_they_are(tmp_path, monkeypatch):
    """Lazy ones, relative ones and those of a submodule."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "diffscope" / "stats" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def f():\n    from ..capture import Scope\n    from .engine import g\n    import diffscope.lab.training.train\n"
    )
    assert list(imported(file)) == [
        (2, "diffscope.capture.Scope"),
        (3, "diffscope.stats.engine.g"),
        (4, "diffscope.lab.training.train"),
    ]
