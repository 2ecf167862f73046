"""What is installed: the public names, the versions, and what the wheel carries."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import diffscope

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(*extras):
    """What is installed with some extras, those that an extra is made of included."""
    lines = PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    found = [Requirement(line) for line in lines]
    own = {extra for requirement in found if requirement.name == PROJECT["name"] for extra in requirement.extras}
    return requirements(*{*extras, *own}) if not own <= set(extras) else [it for it in found if it.name != PROJECT["name"]]


@pytest.mark.parametrize("name", sorted({*diffscope._MODULES, *diffscope.errors.__all__}))
def test_every_public_name_is_there(name):
    assert getattr(diffscope, name) is not None
    assert name in dir(diffscope)


def test_editors_see_errors_and_types_too():
    stub = Path(diffscope.__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    assert "from diffscope.errors import *\n" in stub and Path(diffscope.__file__).with_name("py.typed").is_file()
    assert all(f" {name} as {name}\n" in stub for name in diffscope._MODULES)  # what a stub imports is public by this alone


def test_no_other_name_is_there():
    with pytest.raises(AttributeError, match="nothing_like_this"):
        diffscope.nothing_like_this  # noqa: B018


@pytest.mark.parametrize("line", ["import diffscope", "from diffscope import *"])
def test_importing_it_loads_nothing_heavy_and_shadows_no_builtin(line):
    script = (
        f"import builtins, sys; {line}\n"
        "heavy = {'torch', 'transformers', 'transformer_lens', 'streamlit', 'plotly', 'numpy', 'typer'} & set(sys.modules)\n"
        "print(*heavy, *(set(dir(builtins)) & {name for name in globals() if not name.startswith('__')}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_errors_are_one_family():
    errors = [getattr(diffscope.errors, name) for name in diffscope.errors.__all__]
    failures = [error for error in errors if not issubclass(error, Warning | KeyboardInterrupt)]
    assert len(failures) == 9 and all(issubclass(error, diffscope.DiffscopeError) for error in failures)


def test_constraints_pin_every_dependency_within_its_range():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    for requirement in requirements("dev", "docs", "vision"):
        (pin,) = [pin for pin in pins if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
        (version,) = [pinned.version for pinned in pin.specifier]
        assert requirement.specifier.contains(version), requirement


def test_the_tools_of_a_checkout_include_the_extras_that_tests_need():
    names = {canonicalize_name(requirement.name) for requirement in requirements("dev")}
    assert {"ray", "nnsight", "triton", "datasets", "anywidget", "tensorboardx", "statsmodels"} <= names
    assert PROJECT["name"] not in names


def test_the_citation_is_of_this_version():
    assert f"version: {diffscope.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The built wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_carries_the_package_the_app_and_the_models(wheel):
    def below(folder):
        return {file.relative_to(folder) for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts}

    assert below(ROOT / "diffscope") <= below(wheel / "diffscope")
    assert below(ROOT / "app") <= below(wheel / "diffscope" / "_app")
    assert {path.parts[0] for path in below(wheel)} == {"diffscope", f"diffscope_attention-{diffscope.__version__}.dist-info"}


def test_the_wheel_works_without_the_checkout(wheel, tmp_path):
    script = (
        "import diffscope; from diffscope.cli.app import find_app;"
        "from diffscope.hypotheses.claims import read_claims; from diffscope.hypotheses.shipped import find_study, power_of;"
        "from diffscope.hypotheses.study import open_study; assert open_study('laptop').boards and read_claims()[1];"
        "assert power_of('formation').startswith('with 8 seeds');"
        "print(find_app()); print(find_study()); print(*[model['path'] for model in diffscope.models.bundled()], sep='\\n')"
    )
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    app, study, *models = done.stdout.split("\n")[:-1]
    assert Path(app) == wheel / "diffscope" / "_app" / "main.py"
    assert Path(study) == wheel / "diffscope" / "_studies" / "laptop" / "study.json"
    assert models and all(Path(model).is_relative_to(wheel) for model in models)
