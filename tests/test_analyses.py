"""The notebooks of analyses/ run from beginning to end, and are kept with what they gave.

They run cell by cell in this process, with one import of the libraries, from copies that nothing is written back from; one
of them runs in a kernel of its own. `python -m tools.notebooks` executes all of them in kernels.
"""

import atexit
import re

import nbformat
import pytest
import torch
import transformers
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config
from transformers import LlamaConfig, LlamaForCausalLM

from tests import tiny
from tests.tokenizers_of_kinds import tokenizer
from tools import notebooks

NAMES = [path.name for path in notebooks.notebooks()]
OF_SOUND = "19_stable_audio.ipynb"  # needs diffusers, the extra 'audio'
IN_A_KERNEL = "14_transformerlens_nnsight.ipynb"  # nnsight gives a method to every object of the process that imports it
SHORTER = {  # what is kept was made of more
    "TOKENS = 65_536": "TOKENS = 8_192",  # attention of all tokens to all takes 64 times as long
    "examples = tasks.examples()\n": "examples = tasks.examples()[:2]\n",
    "(160,), prompts=4)": "(160,), prompts=2)",
    "prompts=12, untrained=6)": "prompts=10, untrained=2, length=96)",
    "prompts, count=5)": "prompts, count=2)",
    'in ("NC", "SP", "SH", "neither")': 'in ("NC", "neither")',
    "in (0.0, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0)": "in (0.0, 1.0, 2.0)",
    '"amplifier", "key-token-gain", ': "",
    "figures.maps(cap, layer=layer, head=head)": "figures.maps(cap, layer=layer, head=head, width=2.0)",
    'venue="neurips")': 'venue="neurips", names=["D"], width=2.0)',
    "in cap.layers[1:]": "in cap.layers[1:2]",
    "trained(steps=1200": "trained(steps=40",
    "in range(600):": "in range(20):",
}
LARGEST = 500_000  # bytes

# those whose cells depend most on what a model has: one map or two, heads, checkpoints, another tokenizer than the baseline
ELSEWHERE = [("llama", "02"), ("llama", "03"), ("llama", "08"), ("llama", "09"), ("diffllama", "05"), ("diffllama", "09")]


def read(name):
    return nbformat.read(notebooks.ANALYSES / name, as_version=4)


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """What a notebook writes goes into a folder of its own."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models of random weights with a tokenizer of their own, as they are saved: DiffLlama, and a standard Llama."""
    root = tmp_path_factory.mktemp("models")
    shape = {**tiny.SHAPE, "max_position_embeddings": 1024}
    torch.manual_seed(0)
    standard = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **shape))
    models = {"diffllama": tiny.diffllama(max_position_embeddings=1024), "llama": tiny.awake(standard)}
    for name, model in models.items():
        model.save_pretrained(root / name)
        tokenizer("llama3").save_pretrained(root / name)
    return root


def run(notebook):
    """Run every cell in one shell; gives what each shows, as the kinds of its outputs."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    try:
        return [shown(shell, cell.source) for cell in code_of(notebook)]
    finally:
        atexit.unregister(shell.atexit_operations)
        shell.atexit_operations()
        InteractiveShell.clear_instance()


def shown(shell, source):
    for usual, shorter in SHORTER.items():
        source = source.replace(usual, shorter)
    results = []
    shell.display_trap.hook = CapturingDisplayHook(shell=shell, outputs=results)
    with capture_output() as captured:
        ended = shell.run_cell(source)
    ended.raise_error()
    assert not captured.stderr
    return [sorted(output.data) for output in captured.outputs] + [sorted(output["data"]) for output in results]


def kept(cell):
    return [sorted(output.data) for output in cell.outputs if output.output_type in ("display_data", "execute_result")]


@pytest.mark.parametrize("usual", SHORTER)
def test_what_is_shortened_is_in_a_notebook(usual):
    assert [name for name in NAMES if any(usual in f"{cell.source}\n" for cell in code_of(read(name)))]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != IN_A_KERNEL])
def test_the_notebook_runs_and_shows_what_is_kept(name):
    if name == OF_SOUND:
        pytest.importorskip("diffusers", reason="needs diffusers, the extra 'audio'")
    notebook = read(name)
    assert run(notebook) == [kept(cell) for cell in code_of(notebook)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # the kernel's own plumbing
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_notebook_runs_in_a_kernel_of_its_own(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error::UserWarning,error::FutureWarning,error::RuntimeWarning")
    executed = notebooks.execute(read(IN_A_KERNEL))
    assert not notebooks.failure(executed)
    assert [kept(cell) for cell in code_of(executed)] == [kept(cell) for cell in code_of(read(IN_A_KERNEL))]


@pytest.mark.slow
@pytest.mark.parametrize("model, begin", ELSEWHERE)
def test_the_notebook_runs_on_another_model(model, begin, folders):
    (path,) = notebooks.notebooks([begin])
    run(notebooks.read(path, str(folders / model)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")  # diffusers' autoencoder
def test_the_notebook_of_sound_runs_on_a_pipeline(tmp_path, monkeypatch):
    logs = pytest.importorskip("diffusers", reason="needs diffusers, the extra 'audio'").utils.logging
    from tests import stable_audio

    pipeline = stable_audio.pipeline()
    pipeline.tokenizer.model_max_length = 40  # of characters
    pipeline.save_pretrained(tmp_path / "sound")
    (path,) = notebooks.notebooks([OF_SOUND])
    for each in (logs, transformers.utils.logging):
        monkeypatch.setattr(each, "_tqdm_active", False)  # bars of loading
    run(notebooks.read(path, str(tmp_path / "sound")))


def test_an_error_ends_a_notebook_and_is_named(tmp_path):
    cells = [nbformat.v4.new_code_cell("MODEL = 'x'"), nbformat.v4.new_code_cell("1 / 0"), nbformat.v4.new_code_cell("2")]
    path = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    executed = notebooks.execute(notebooks.read(path, "C:\\a folder"))
    assert notebooks.failure(executed) == "ZeroDivisionError: division by zero"
    assert [cell.execution_count for cell in executed.cells] == [1, 2, None]
    assert executed.cells[0].source == "MODEL = 'C:\\\\a folder'"


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_kept_with_its_results(name):
    assert (notebooks.ANALYSES / name).stat().st_size <= LARGEST
    notebook = read(name)
    assert [cell.execution_count for cell in code_of(notebook)] == list(range(1, len(code_of(notebook)) + 1))
    outputs = [output for cell in code_of(notebook) for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    text = "".join(output.get("text", "") + str(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert not re.findall(r"(?:/home|/root|/tmp|/work|/usr|[A-Z]:\\)\S*", text)


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_asks_one_question_of_one_model_or_study(name):
    notebook = read(name)
    assert len(notebooks.subjects(notebook)) == 1
    words = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    headings = re.findall(r"^(#+) (.+)$", "\n".join(words), re.M)
    assert [mark for mark, _ in headings] == ["#"] + ["##"] * (len(headings) - 1)
    assert words[0].startswith("# ") and headings[0][1].endswith("?")
    assert headings[-1][1] == "Conclusion"
    for link in re.findall(r"\]\(([^)#]+)", "\n".join(words)):
        assert (notebooks.ANALYSES / link).is_file(), link


def test_the_list_of_notebooks_has_each_with_its_question():
    rows = re.findall(r"^\| \[(\d\d)\]\((.+)\) \| (.+) \|$", (notebooks.ANALYSES / "README.md").read_text(encoding="utf-8"), re.M)
    assert rows == [(name[:2], name, read(name).cells[0].source.splitlines()[0].removeprefix("# ")) for name in NAMES]
