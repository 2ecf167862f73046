"""A page for every public name, written when the site is built, and the index of them by module.

What is public: the names of ``diffscope``, what its public modules list in ``__all__``, and what the guides call by a longer
name.
"""

import ast
import inspect
import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from gallery import drawn, scripts
from outside import DOCS, ROOT, write

FOLDER = DOCS / "api"

FORMULAS = """argmax cmrr cosine effective_tokens entropy entropy_normalised gini head_cka hoyer js kl lambda_star
near_zero negative_count negative_share noise_gain overlap participation pseudo_norm quantiles
rank_residual ranks residual_floor residual_noise rho row_sum selectivity shape_overlap signal_gain singular_values span_mass
top_k_mass uniform_map""".split()

#: public modules in the order of the index, and of those without ``__all__`` the names that the guides tell of
MODULES: dict[str, Sequence[str] | None] = {
    "diffscope": None,
    "diffscope.figures": None,
    "diffscope.views": None,
    "diffscope.tables": None,
    "diffscope.edits": None,
    "diffscope.readings": None,
    "diffscope.stats": None,
    "diffscope.stats.formulas": FORMULAS,
    "diffscope.attribution": None,
    "diffscope.instruments": None,
    "diffscope.instruments.snr": ("mean_gain", "over_prompts"),
    "diffscope.hypotheses": None,
    "diffscope.tasks": None,
    "diffscope.prompts": None,
    "diffscope.attention.fidelity": ("Fidelity",),
    "diffscope.families": None,
    "diffscope.conformance": None,
    "diffscope.attention": None,
    "diffscope.models": None,
    "diffscope.monitoring": None,
    "diffscope.lab": (),
    "diffscope.lab.items": ("Item", "Outcome"),
    "diffscope.lab.queue": ("run",),
    "diffscope.storage": None,
    "diffscope.lens": None,
    "diffscope.errors": None,
}
#: what is no function and no class
DATA = {
    "diffscope.edits.EDITS": "What every edit declares, by its name: what it computes instead, where it acts and what it needs.",
    "diffscope.families.FAMILIES": "Every family, the most particular first: the first that recognises a model opens it.",
    "diffscope.figures.FIGURES": "The function of every figure, by its name.",
    "diffscope.hypotheses.TESTS": "Every declared test, by its name.",
    "diffscope.models.ATTENTIONS": "What ``DiffConfig(attention=…)`` may be.",
    "diffscope.readings.RANK_DEFINITIONS": "How each definition of an effective rank is made of the singular values σ of a map.",
    "diffscope.stats.KINDS": "The kinds of statistics, in the order of the table; a kind's name stands for its statistics.",
    "diffscope.stats.STATISTICS": "Every statistic, by its name: units, definition, range, where it is undefined.",
}
HEAD = """# API

Every public name, by module. What most people need stands in the first table: {py:func}`diffscope.load` opens a model,
{py:class}`diffscope.Scope` runs it, {py:class}`diffscope.Capture` is what its attention did on a prompt. A public name is
imported when it is first used, so `import diffscope` costs nothing. By the alphabet: {ref}`every name <genindex>`,
{ref}`every module <modindex>`.
"""
#: how to come by what is not made by hand
COMES_FROM = {
    "diffscope.Scope": """
scope = diffscope.load("mini-diff")  # bundled name, folder, hub id, or a model that you hold
scope.capture("Magic numbers. Paris 7421. Rome 2174. Paris")
""",
    "diffscope.Capture": """
scope = diffscope.load("mini-diff")
cap = scope.capture("Magic numbers. Paris 7421. Rome 2174. Paris", spans={"answer": "7421"})
cap.map("D", layer=2, head=1)
cap.measure(["entropy", "span_mass"])
cap.save("paris.dscope")
cap = diffscope.open("paris.dscope")  # without the model
batch = scope.capture(["Magic numbers. Paris 7421.", "Magic numbers. Rome 2174."])
batch[0]  # the capture of the first prompt
""",
    "diffscope.Comparison": """
models = diffscope.load("mini-diff"), diffscope.load("mini-standard")
pair = diffscope.compare(*models, "Magic numbers. Paris 7421. Rome 2174. Paris", spans={"answer": "7421"})
pair.measure(["entropy", "span_mass"])
""",
    "diffscope.conformance.Report": """
report = diffscope.check("mini-diff")
""",
    "diffscope.attention.fidelity.Fidelity": """
cap = diffscope.load("mini-diff").capture("Magic numbers. Paris 7421. Rome 2174. Paris")
cap.fidelity[0]  # of layer 0
""",
}


def names() -> dict[str, list[str]]:
    """The public names of each module, without modules."""
    found = {}
    for name, told in MODULES.items():
        module = import_module(name)
        every = (
            sorted({*module._MODULES, *module.__all__}) if name == "diffscope" else list(module.__all__ if told is None else told)
        )
        found[name] = [each for each in every if not isinstance(getattr(module, each), ModuleType)]
    return found


def pages() -> dict[str, str]:
    """Where each public name is described: the full name, and that under which its object has its page, the first one."""
    described: dict[int, str] = {}
    found = {}
    for module, listed in names().items():
        for name in listed:
            value = getattr(import_module(module), name)
            full = f"{module}.{name}"
            found[full] = described.setdefault(id(value), full) if callable(value) else full
    return found


def files() -> dict[str, str]:
    """The file of each page, of names and of modules; names that differ by case alone get different files everywhere."""
    taken: set[str] = set()
    found = {}
    for full in [*MODULES, *dict.fromkeys(pages().values())]:
        file = full if full.lower() not in taken else f"{full}-function"
        taken.add(file.lower())
        found[full] = file
    return found


def described(full: str) -> str:
    """The page of one name."""
    module, _, name = full.rpartition(".")
    value = getattr(import_module(module), name)
    head = f"{full}\n{'=' * len(full)}\n\n.. currentmodule:: {module}\n\n"
    if inspect.isclass(value):
        return f"{head}{how_to_come_by(full)}.. autoclass:: {full}{signature(value)}\n{options(value)}"
    if callable(value):
        return f"{head}.. autofunction:: {full}\n\n{in_gallery(full)}"
    return f"{head}.. py:data:: {full}\n\n   {DATA[full]}\n"


def how_to_come_by(full: str) -> str:
    """The lines of code that give one, of what is not made by hand."""
    if full not in COMES_FROM:
        return ""
    code = f"import diffscope\n\n{COMES_FROM[full].strip()}"
    return ".. code-block:: python\n\n" + "".join(f"   {line}".rstrip() + "\n" for line in code.splitlines()) + "\n"


def in_gallery(full: str) -> str:
    """The pages of the gallery that call a function, and what that draws which is called as the function is."""
    pages = [script for script in scripts() if full.removeprefix("diffscope.") in script.calls]
    if not pages:
        return ""
    listed = ", ".join(f":doc:`{script.title} </gallery/{script.name}>`" for script in pages)
    own = [drawn(script) for script in pages if full == f"diffscope.figures.{script.name}"]
    pictures = [picture(path, full) for path in own if path.suffix == ".svg"]
    return "\n".join([f"In the gallery: {listed}.\n", *pictures])


def picture(path: Path, full: str) -> str:
    """What the gallery draws of a figure, leading to its page there."""
    options = f"   :class: paper\n   :alt: {full}\n   :target: ../gallery/{path.stem}.html\n"
    return f".. image:: ../{path.relative_to(DOCS)}\n{options}"


def signature(value: type) -> str:
    """Empty for what is not made by hand, such as a capture: what it keeps to itself is among what makes it."""
    try:
        return "()" if any(name.startswith("_") for name in inspect.signature(value).parameters) else ""
    except ValueError:  # of exceptions
        return ""


def options(value: type) -> str:
    """What is shown of a class: what it has of another of the package too."""
    if issubclass(value, BaseException):
        return "   :no-members:\n   :show-inheritance:\n"
    bases = value.__mro__[1:-1]
    of_ours = all(base.__module__.startswith("diffscope") for base in bases)
    return "   :inherited-members:\n" if bases and of_ours else ""


def summary(full: str) -> str:
    """The first sentence of what is said of a name."""
    if full in DATA:
        return DATA[full]
    module, _, name = full.rpartition(".")
    paragraph = (inspect.getdoc(getattr(import_module(module), name)) or "").partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.?])\s", paragraph)[0]


def said_of(module: str) -> str:
    """The first paragraph of what is said of a module, as it stands in a table."""
    return (inspect.getdoc(import_module(module)) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def of_module(module: str, listed: list[str], where: dict[str, str]) -> str:
    """The page of one module: what it is, and a table of its names."""
    file = files()
    head = f"{module}\n{'=' * len(module)}\n\n.. automodule:: {module}\n   :no-members:\n\n"
    if not listed:
        return head
    rows = [(where[f"{module}.{name}"], name) for name in listed]
    table = "\n".join(f"   * - :py:obj:`{name} <{full}>`\n     - {escaped(summary(full))}" for full, name in rows)
    own = "\n".join(
        f"   {file[full]}"
        for full in dict.fromkeys(where[f"{module}.{name}"] for name in listed)
        if full.startswith(f"{module}.")
    )
    tree = f".. toctree::\n   :hidden:\n\n{own}\n" if own else ""
    return f"{head}.. list-table::\n   :widths: 30 70\n\n{table}\n\n{tree}"


def prepare(app, config) -> None:
    """Write all pages."""
    where, listed, file = pages(), names(), files()
    made = {f"{file[full]}.rst": described(full) for full in dict.fromkeys(where.values())}
    made |= {f"{file[module]}.rst": of_module(module, listed[module], where) for module in MODULES}
    tree = "\n".join(file[module] for module in MODULES)
    rows = "\n".join(f"| {{py:mod}}`{module}` | {said_of(module)} |" for module in MODULES)
    table = f"| module | what it is |\n|---|---|\n{rows}"
    made["index.md"] = f"{HEAD}\n{table}\n\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{tree}\n```\n"
    for name, text in made.items():
        write(FOLDER / name, text)
    for path in FOLDER.iterdir():
        if path.name not in made:
            path.unlink()


def escape(app, what, name, value, options, lines: list[str]) -> None:
    """Docstrings are written to be read as they are: bars and asterisks are no markup, and tables stay as they stand."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # else napoleon takes what stands before a colon in the first line for a type
    table = [bool(re.match(r"\s*\|.*\|\s*$", line)) for line in lines]
    written = []
    for number, line in enumerate(lines):
        if table[number]:
            if not number or not table[number - 1]:
                written += ["::", ""]
            written.append(f"    {line}")
            continue
        written.append(escaped(line))
    lines[:] = written


def escaped(line: str) -> str:
    """A line whose bars and asterisks are no markup, but in what is set as code."""
    pieces = re.split(r"(``.*?``|:\w+:`[^`]*`|`[^`]*`)", line)
    return "".join(piece if piece.startswith(("`", ":")) else re.sub(r"([|*])", r"\\\1", piece) for piece in pieces)


def resolve(app, env, node, contnode):
    """A link to a name that docstrings call shortly, or by the module that it is written in: to its page, if it has one.

    What has none is named without a link.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    objects = env.domains["py"].objects
    last = target.rpartition(".")[2]
    method = ".".join(target.split(".")[-2:])
    for candidate in (
        f"diffscope.{method}",
        *(full for full in objects if full.endswith(f".{last}") and full in set(pages().values())),
    ):
        if candidate in objects:
            from sphinx.util.nodes import make_refnode

            found = objects[candidate]
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, contnode, candidate)
    return contnode if last in written() else None


@cache
def written() -> frozenset[str]:
    """Every name that the package defines, public or not."""
    found = set()
    for path in (ROOT / "diffscope").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
        found |= set(path.relative_to(ROOT).with_suffix("").parts)
    return frozenset(found)


def setup(app):
    """Write before anything is read."""
    app.connect("config-inited", prepare)
    app.connect("autodoc-process-docstring", escape, priority=400)  # before napoleon
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
