"""Every notebook of analyses/ runs from beginning to end, from a copy that nothing is written back from."""

import os
import shutil
from pathlib import Path

import pytest

ANALYSES = Path(__file__).parents[1] / "analyses"
TIMEOUT = 600  # seconds a cell


@pytest.fixture(autouse=True)
def bundled_models():
    from diffscope import models

    if not models.bundled():
        pytest.skip("no model is bundled with this checkout")


@pytest.mark.slow
# the kernel's own plumbing; the notebook's cells run in another process, with warnings as errors
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", sorted(path.name for path in ANALYSES.glob("*.ipynb")))
def test_the_notebook_runs(name, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    path = Path(shutil.copy(ANALYSES / name, tmp_path))
    notebook = nbformat.read(path, as_version=4)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ANALYSES.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONWARNINGS", "error::UserWarning,error::FutureWarning,error::RuntimeWarning")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    errors = [output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert not errors


@pytest.mark.parametrize("name", sorted(path.name for path in ANALYSES.glob("*.ipynb")))
def test_the_notebook_is_kept_with_its_results(name):
    import nbformat

    cells = [cell for cell in nbformat.read(ANALYSES / name, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), "execute it before it is kept"
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
