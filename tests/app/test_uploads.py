"""Uploads: a model's files are kept as long as they are used, and whatever else comes is refused, with nothing left on disk."""

import gc
import io
import json
import os
import pickle
import struct
import sys
import tempfile
import time
import zipfile
from functools import cache

import pytest
from small_models import APP

import diffscope
from diffscope import DiffscopeError

MOST = 2 * 2**20


@pytest.fixture
def uploads(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    import uploads

    yield uploads
    for name in [name for name, module in sys.modules.items() if str(APP) in str(getattr(module, "__file__", ""))]:
        if name not in ("trial", "uploads"):  # the process that looks at uploads stays
            sys.modules.pop(name, None)


@pytest.fixture
def files(folders):
    """The files of a model, by name."""
    return {file.name: file.read_bytes() for file in folders["small-diff"].iterdir() if file.name != "README.md"}


def bound(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def accept(uploads, files, **options):
    given = files.items() if isinstance(files, dict) else files
    return uploads.accept([uploads.File(*file) for file in given], "mine", MOST, **options)


def header(tensors, values=b"", length=None):
    """A safetensors file of a header that may say anything."""
    words = json.dumps(tensors).encode()
    return struct.pack("<Q", len(words) if length is None else length) + words + values


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@cache
def zipped(size=0):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", b"\0" * size)
    return file.getvalue()


def changed(name, content):
    return lambda files: files | {name: content(files.get(name)) if callable(content) else content}


def with_fields(name="config.json", **fields):
    return changed(name, lambda content: json.dumps(json.loads(content) | fields).encode())


WEIGHTS = "model.safetensors"
PICKLE = "is a pickle .as torch.save writes., not safetensors"
ENDLESS = "{% set n = 99999 %}" + "{% for _ in range(n) %}" * 4 + "{% endfor %}" * 4
HOSTILE = {
    "a pickle": (changed("pytorch_model.bin", pickle.dumps({"a": 1})), "is a pickle, which can run code"),
    "a pickle called config.json": (changed("config.json", pickle.dumps({"a": 1})), "is a pickle"),
    "a pickle called weights": (changed(WEIGHTS, pickle.dumps({"a": [1] * 99})), PICKLE),
    "a zip bomb": (changed("model.zip", lambda _: zipped(10 * 2**20)), "is a zip archive"),
    "a zip bomb called tokenizer.json": (changed("tokenizer.json", lambda _: zipped(10 * 2**20)), "is a zip archive"),
    "a checkpoint of torch called weights": (changed(WEIGHTS, zipped(9)), PICKLE),
    "cut weights": (changed(WEIGHTS, lambda content: content[:-100]), "truncated or damaged"),
    "cut header": (changed(WEIGHTS, lambda content: content[:40]), "truncated or damaged"),
    "no weights": (changed(WEIGHTS, b""), "truncated or damaged"),
    "a header of 2^60 bytes": (changed(WEIGHTS, header({}, length=2**60)), "truncated or damaged"),
    "tensors that overlap": (
        changed(WEIGHTS, header({"a": entry([4], 0, 16), "b": entry([4], 8, 24)}, b"\0" * 24)),
        "truncated or damaged",
    ),
    "a tensor that says more than it has": (
        changed(WEIGHTS, header({"a": entry([10**9], 0, 16)}, b"\0" * 16)),
        "truncated or damaged",
    ),
    "a shape beyond all numbers": (
        changed(WEIGHTS, header({"a": entry([2**62, 2**62], 0, 16)}, b"\0" * 16)),
        "truncated or damaged",
    ),
    "weights of something else": (
        changed(WEIGHTS, header({"a": entry([4], 0, 16)}, b"\0" * 16)),
        "the others would be random|layers",
    ),
    "other shapes": (with_fields(intermediate_size=49), "do not fit its config.json"),
    "a configuration of a large model": (with_fields(hidden_size=8192, num_hidden_layers=3), "do not fit|would be random"),
    "a configuration of endless layers": (with_fields(num_hidden_layers=10**9), "num_hidden_layers = 1,000,000,000"),
    "a configuration of endless labels": (with_fields(num_labels=3 * 10**8), "num_labels = 300,000,000"),
    "a configuration of a large mask": (with_fields(max_position_embeddings=10**12), "max_position_embeddings"),
    "a tokenizer that grows": (
        with_fields("tokenizer.json", normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 2000}),
        "texts up to 2e\\+03 times longer",
    ),
    "a tokenizer whose pattern never ends": (
        with_fields(
            "tokenizer.json",
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        ),
        "the tokenizer cannot split this text",
    ),
    "a tokenizer that does not know all characters": (
        with_fields("tokenizer.json", model={"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}, added_tokens=[]),
        "the tokenizer cannot split this text .*unk_id",
    ),
    "code of its own": (
        with_fields(auto_map={"AutoModelForCausalLM": "evil.Model"}),
        r"code that comes with the model \(evil.Model\)",
    ),
    "code of a tokenizer": (with_fields("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}), "no code is run"),
    "an unknown kind": (with_fields(model_type="my-own"), "no model that transformers knows"),
    "no kind": (with_fields(model_type=None), "names no model_type"),
    "a list for a configuration": (changed("config.json", b"[]"), "no JSON object"),
    "broken JSON": (changed("config.json", b'{"model_type": '), "broken JSON"),
    "JSON without end": (changed("config.json", b'{"a":' + b"[" * 10**6), "broken JSON"),
    "settings without end": (changed("config.json", b"{" + b" " * 5 * 2**20), "MiB are taken"),
    "Latin-1 for text": (changed("merges.txt", b"caf\xe9"), "not UTF-8"),
    "words for pieces": (changed("tokenizer.model", b"hello"), "no model of sentencepiece"),
    "a name that climbs": (changed("../config.json", b"{}"), "names a place"),
    "a name with a folder": (changed("a/config.json", b"{}"), "names a place"),
    "a name of Windows": (changed("..\\config.json", b"{}"), "names a place"),
    "an absolute name": (changed("/etc/cron.d/x.json", b"{}"), "names a place"),
    "a name with NUL": (changed("config.json\0.txt", b"{}"), "names a place"),
    "Python": (changed("modeling.py", b"import os"), "none of the files"),
    "a folder beside": (changed(".safetensors", b""), "none of the files"),
    "an index of other files": (
        changed("model.safetensors.index.json", b'{"weight_map": {"a": "../../other/model.safetensors"}}'),
        "were not uploaded",
    ),
    "too much": (changed("vocab.json", b"{" + b" " * MOST), "MiB are taken"),
    "without a configuration": (lambda files: {WEIGHTS: files[WEIGHTS]}, "config.json is missing"),
    "without weights": (lambda files: {"config.json": files["config.json"]}, "model.safetensors is missing"),
    "two configurations": (lambda files: [*files.items(), ("config.json", files["config.json"])], "given twice"),
    "nothing": (lambda files: {}, "config.json is missing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_a_model_is_refused_in_a_line_and_leaves_nothing(name, uploads, files, tmp_path):
    change, says = HOSTILE[name]
    with pytest.raises(DiffscopeError, match=says) as error:
        accept(uploads, change(files))
    assert "\n" not in str(error.value) and str(tmp_path) not in str(error.value) and len(str(error.value)) < 400
    assert not list(tmp_path.iterdir())


def test_what_would_not_fit_into_memory_is_refused_before_it_is_made(uploads, files, tmp_path, monkeypatch):
    monkeypatch.setitem(uploads.check_memory.__globals__, "free_memory", lambda device: 1000.0)
    with pytest.raises(DiffscopeError, match="are free"):
        accept(uploads, files)
    assert not list(tmp_path.iterdir())


def test_a_model_is_kept_where_nobody_else_can_read_it_until_it_is_let_go(uploads, files, tmp_path):
    upload = accept(uploads, files)
    assert upload.folder.name == "mine" and uploads.is_upload(str(upload.folder)) and not uploads.is_upload("/etc")
    assert {path.name for path in bound(tmp_path)} == set(files)
    assert upload.folder.parent.stat().st_mode & 0o077 == 0
    assert diffscope.load(upload.folder).capture("The magic number").n_layers == 3
    del upload
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("called", ["../../etc", "a/b\0c", "", "...", "<b>", "ü" * 99])
def test_whatever_a_model_is_called_it_stays_in_its_folder(called, uploads, files, tmp_path):
    upload = uploads.accept([uploads.File(*file) for file in files.items()], called, MOST)
    assert upload.folder.parent.parent == tmp_path and len(bound(tmp_path)) == len(files)
    upload.remove()
    assert not list(tmp_path.iterdir())


def test_a_model_that_nobody_uses_any_more_is_removed(uploads, files, tmp_path):
    used = [True, False, True, False, False]  # a page that is loaded again is gone for a moment
    upload = accept(uploads, files, used=lambda: used.pop(0), every=0.02)
    end = time.monotonic() + 20
    while list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not used and not upload.folder.parent.exists()


def test_what_a_killed_process_left_is_removed_by_the_next_upload(uploads, files, tmp_path):
    old, new = tmp_path / f"{uploads.PREFIX}old", tmp_path / f"{uploads.PREFIX}new"
    for folder in (old, new):
        (folder / "model").mkdir(parents=True)
    os.utime(old, (0, 0))
    upload = accept(uploads, files)
    assert not old.exists() and new.exists() and upload.folder.exists()


def test_settings_name_no_other_files_and_no_code_to_be_fetched(uploads, files, tmp_path):
    """A vocabulary from elsewhere would show that file; an implementation of attention may be fetched from the hub."""
    secret = tmp_path.parent / "secret.txt"
    secret.write_text("the secret\n")
    files = with_fields("tokenizer_config.json", vocab_file=str(secret), tokenizer_file=str(secret), init_inputs=[str(secret)])(
        files
    )
    files = with_fields(_attn_implementation_internal="a/b", attn_implementation="evil/kernel", _name_or_path="x/y")(files)
    upload = accept(uploads, files)
    written = " ".join((upload.folder / name).read_text() for name in ("config.json", "tokenizer_config.json"))
    assert not any(word in written for word in ("secret", "evil", "a/b", "x/y"))
    assert diffscope.load(upload.folder).model.config._attn_implementation == "sdpa"


def test_a_model_that_takes_too_much_to_look_at_is_refused_and_the_next_is_taken(uploads, files, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        little = type(uploads.TRIAL)(memory=2**20)
        patched.setattr(uploads, "TRIAL", little)
        with pytest.raises(DiffscopeError, match="takes more than 20 s or 0 GiB to look at"):
            accept(uploads, files)
        little.end()
    assert not list(tmp_path.iterdir())
    assert accept(uploads, files).there


def test_a_chat_template_that_does_not_end_is_refused(uploads, files, tmp_path, monkeypatch):
    short = type(uploads.TRIAL)(seconds=1)
    monkeypatch.setattr(uploads, "TRIAL", short)
    with pytest.raises(DiffscopeError, match="takes more than 1 s"):
        accept(uploads, with_fields("tokenizer_config.json", chat_template=ENDLESS)(files))
    short.end()
    assert not list(tmp_path.iterdir())
