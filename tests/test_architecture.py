"""The house keeps its floors: imports run downwards only, and each room uses only the libraries it may."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "diffscope"

# From the ground up. A room imports from itself and from lower floors, never from a neighbour or a higher one.
FLOORS = (
    ("errors",),
    ("attention",),
    ("edits",),
    ("models",),
    ("families",),
    ("kernels",),
    ("prompts",),
    ("proof",),
    ("stats",),
    ("store",),
    ("capture",),
    ("runners",),
    ("scope",),
    ("conformance",),
    ("lens",),
    ("tasks",),
    ("lab",),
    ("figures", "hypotheses"),
    ("cli",),
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
FRONT_DOOR = ("__init__", "__main__")

CORE = {"torch", "transformers", "numpy", "scipy", "xarray", "safetensors"}
# use no more
PLAIN = ("attention", "edits", "families", "stats", "prompts", "proof", "capture", "runners", "scope", "conformance")
LIBRARIES = {
    **dict.fromkeys(PLAIN, CORE),
    "errors": set(),
    "models": CORE | {"timm"},
    "kernels": CORE | {"triton", "flash_attn"},
    "tasks": CORE | {"tokenizers", "pyarrow", "datasets"},
    "lab": CORE | {"huggingface_hub", "ray", "tensorboardX"},
    "store": CORE | {"pandas", "pyarrow", "zarr"},
    "lens": CORE | {"transformer_lens"},
    "figures": {"numpy", "xarray", "plotly", "matplotlib"},
    "hypotheses": CORE | {"statsmodels"},
    "cli": {"typer", "rich"},
    "__init__": set(),
    "__main__": set(),
    "app": {"numpy", "pandas", "xarray", "plotly", "streamlit"},
}


def library_files():
    return sorted(PACKAGE.rglob("*.py"))


def app_files():
    return sorted((ROOT / "app").rglob("*.py"))


def room_of(path):
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).with_suffix("").parts[0]
    return "app"


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path):
    """(line, dotted name) of everything a file imports, wherever in the file it does."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, node.module) if node.module else above)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def say(path, line, what):
    return f"{path.relative_to(ROOT)}:{line} {what}"


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", library_files(), ids=name)
def test_imports_run_downwards(path):
    room = room_of(path)
    if room in FRONT_DOOR:
        return
    assert room in FLOOR, f"{name(path)} is in no room of the plan; give it a floor"
    wrong = []
    for line, dotted in imported(path):
        top, _, rest = dotted.partition(".")
        target = rest.partition(".")[0]
        if top != "diffscope" or target in (room, "__version__"):
            continue
        if target in FLOOR:
            if FLOOR[target] >= FLOOR[room]:
                wrong.append(say(path, line, f"reaches up to {target}"))
        elif room != "cli":
            wrong.append(say(path, line, "imports the public names, which reach everywhere"))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", library_files() + app_files(), ids=name)
def test_a_room_uses_only_its_libraries(path):
    room = room_of(path)
    known = sys.stdlib_module_names | LIBRARIES.get(room, set()) | {"diffscope"}
    if room == "app":
        known |= {file.stem for file in app_files()} | {"app", "app_pages"}
    wrong = [say(path, line, f"imports {dotted}") for line, dotted in imported(path) if dotted.partition(".")[0] not in known]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", library_files() + app_files(), ids=name)
def test_nothing_prints_or_runs_code_from_a_file(path):
    wrong = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "torch.load", "torch.save", "eval", "exec"):
                wrong.append(say(path, node.lineno, f"calls {called}"))
    for line, dotted in imported(path):
        if dotted.partition(".")[0] in ("pickle", "marshal", "shelve"):
            wrong.append(say(path, line, f"imports {dotted}"))
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if re.search(r"(trust_remote_code|allow_pickle)\W*[=:]\s*True", text):
            wrong.append(say(path, line, "trusts what it opens"))
    assert not wrong, "\n".join(wrong)


def test_the_rules_can_fail(tmp_path, monkeypatch):
    """The check sees imports that are lazy, relative or of a submodule."""
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
