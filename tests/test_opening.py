"""What the library wrote opens with one word, and anything else gets one line that says what to do."""

import copy
import os
import re
from contextlib import nullcontext

import pytest
import torch
import xarray as xr

import diffscope
from diffscope import CorruptFile, DiffscopeError, edits
from diffscope.capture.capture import open_capture
from diffscope.hypotheses.study import Study
from diffscope.storage import tensors as store
from diffscope.storage.atomic import UNFINISHED
from diffscope.storage.statistics import FORMATS, save_statistics
from diffscope.storage.tensors import open_tensors, save_tensors
from tests import tiny
from tests.study_data import study as planted_study


@pytest.fixture(scope="module")
def capture():
    return diffscope.load(tiny.own("v1")).capture(tiny.ids(9))


@pytest.mark.parametrize("name", ["a.dscope", "a.safetensors", "a", "a.bin"])
def test_a_capture_opens_under_any_name_and_is_kept_under_its_own(capture, tmp_path, name):
    capture.save(tmp_path / "kept.DSCOPE")
    (tmp_path / "kept.DSCOPE").rename(tmp_path / name)
    assert diffscope.open(tmp_path / name).tokens == capture.tokens
    if name != "a.dscope":
        with pytest.raises(diffscope.DiffscopeError, match=r"name it 'a\.dscope'"):
            capture.save(tmp_path / name)


@pytest.mark.parametrize("suffix", FORMATS)
def test_statistics(capture, tmp_path, suffix):
    measured = capture.measure("gini")
    save_statistics(measured, tmp_path / f"rows{suffix}")
    assert diffscope.open(str(tmp_path / f"rows{suffix}"))["gini"].equals(measured["gini"])


@pytest.mark.parametrize("suffix", [".dscope", ".safetensors", ".nc", ".parquet", ".csv", ".pt"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_under_any_name_is_called_a_pickle(tmp_path, suffix, zipped):
    path = tmp_path / f"renamed{suffix}"
    torch.save({"weight": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(diffscope.DiffscopeError, match="is a pickle .as torch.save writes., not a file of diffscope; "):
        diffscope.open(path)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 0x0280, 0x0580])
def test_a_damaged_capture_is_no_pickle_whatever_its_header_begins_with(tmp_path, length):
    """A header of 640 bytes makes a file begin as a pickle of protocol 2 does."""
    (tmp_path / "damaged.dscope").write_bytes(length.to_bytes(8, "little") + b"{" * 700)
    with pytest.raises(diffscope.CorruptFile, match="damaged"):
        diffscope.open(tmp_path / "damaged.dscope")


def test_a_later_format_is_called_later_and_its_damage_damage(capture, tmp_path, monkeypatch):
    path = tmp_path / "later.dscope"
    with monkeypatch.context() as patch:
        patch.setattr(store, "NEWEST", 7)
        capture.save(path)
    with pytest.raises(diffscope.DiffscopeError, match=r"later diffscope \(format 7; this one reads up to 1\); update"):
        diffscope.open(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(diffscope.CorruptFile, match="is damaged"):
        diffscope.open(path)


@pytest.mark.parametrize(
    "path", [None, 3, b"a.dscope", "", " ", "\0", "a\0.dscope", "x" * 300 + ".dscope", "a/" * 3000 + "a.dscope"]
)
def test_what_is_no_path_is_one_line(capture, path):
    for act in (
        diffscope.open,
        open_capture,
        capture.save,
        lambda path: save_statistics(capture.measure("gini"), path),
    ):
        with pytest.raises(diffscope.DiffscopeError) as error:
            act(path)
        assert str(error.value).count("\n") == 0 and len(str(error.value)) < 250
        assert re.search("path|has .* bytes", str(error.value))


def test_the_longest_name_that_can_be_written_opens(capture, tmp_path):
    path = tmp_path / ("x" * (255 - UNFINISHED - len(".dscope")) + ".dscope")
    capture.save(path)
    assert diffscope.open(path).tokens == capture.tokens
    with pytest.raises(diffscope.DiffscopeError, match="240 bytes, and 239 are taken; shorten it"):
        capture.save(path.with_name("x" + path.name))


def test_a_study(tmp_path):
    planted_study().save(tmp_path / "study")
    for path in (tmp_path / "study", tmp_path / "study" / "study.json"):
        study = diffscope.open(path)
        assert isinstance(study, Study) and study.boards


def test_a_cohort(tmp_path):
    cohort = xr.Dataset({"exact_match": ("seed", [1.0]), "finished": ("seed", [1])}, attrs={"recipe": "{}"})
    save_statistics(cohort, tmp_path / "cohort.nc")
    assert diffscope.open(tmp_path / "cohort.nc").identical(diffscope.open(tmp_path))


def test_anything_else_is_one_line_that_says_what_to_do(tiny_diff_folder, tmp_path):
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "broken.dscope").write_text("notes")
    (tmp_path / "empty").mkdir()
    for path, words in {
        tmp_path / "nowhere.nc": "there is no",
        tmp_path / "notes.txt": r"is not a capture, statistics.*; the files of these are \.dscope",
        tmp_path / "broken.dscope": "damaged",
        tmp_path: "it holds broken.dscope, empty, notes.txt; name one of the files",
        tmp_path / "empty": "it is empty",
        tiny_diff_folder: "a model's folder; open it with diffscope.load",
        tiny_diff_folder / "model.safetensors": "part of a model; open it with diffscope.load",
    }.items():
        with pytest.raises(diffscope.DiffscopeError, match=words) as error:
            diffscope.open(path)
        assert "\n" not in str(error.value)


KINDS, NUMBERS, TEXT = [[], {"a": "\ud800"}], [-1, 10**30, float("nan"), True], "\x1b[31m<b>"
ABSENT = object()


def places(value, path=()):
    """Every place of a record, of a list its ends alone."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else [(at, value[at]) for at in {0, len(value) - 1} if value]
    for name, part in parts:
        if isinstance(part, (dict, list)):
            yield from places(part, (*path, name))
        else:
            yield (*path, name)


def at(record, path):
    for name in path:
        record = record[name]
    return record


def wrong_values(turn, value):
    """What a place cannot hold: nothing, text, something of another kind, and a number; all numbers where one stands."""
    numbers = NUMBERS if isinstance(value, (int, float)) and not isinstance(value, bool) else [NUMBERS[turn % len(NUMBERS)]]
    return [ABSENT, TEXT, None, KINDS[turn % len(KINDS)], *numbers]


def with_value(record, path, value):
    record = copy.deepcopy(record)
    last = at(record, path[:-1])
    if value is ABSENT:
        del last[path[-1]]
    else:
        last[path[-1]] = value
    return record


def reshaped(tensor):
    """A tensor in other dtypes and shapes, and with values that it cannot have."""
    yield tensor.to(torch.float64 if tensor.dtype in (torch.int64, torch.bool) else torch.int64)
    yield tensor.to(torch.float8_e4m3fn)
    yield tensor[None].clone()
    yield tensor[0].clone()
    for dim in range(tensor.dim()):
        yield torch.cat([tensor, tensor], dim)
        yield tensor.narrow(dim, 0, 0).clone()
        yield torch.zeros([10**9 if at == dim else 0 for at in range(max(tensor.dim(), 2))], dtype=tensor.dtype)
    yield torch.full_like(tensor, 1000)
    yield torch.full_like(tensor, -1)
    if tensor.is_floating_point():
        yield torch.full_like(tensor, float("nan"))


def used(capture, folder):
    """All that is asked of a capture."""
    assert repr(capture) and capture._repr_html_() and capture.spans is not None
    assert capture.fidelity.sizes["layer"] == capture.n_layers == capture.lam.sizes["layer"] == capture.lam_init.sizes["layer"]
    capture.save(folder / "again.dscope")
    if any(not layer.differential and not (layer.gain == 1).all() for layer in capture.layers):  # all else is answered
        with pytest.raises(DiffscopeError, match="has one map and a gain"):
            capture.measure(["gini", "span_mass"])
    else:
        save_statistics(capture.measure(["gini", "span_mass"]), folder / "measured.nc")
    for name in ("A1", "D"):
        capture[-1].map(name, layer=capture.layer_numbers[-1], head=capture.n_heads - 1)
    capture.layers[0].prompt(0).output()


@pytest.mark.parametrize("kind", ["changed", "sinks"])
def test_a_capture_with_a_right_digest_and_wrong_content_is_refused_when_it_is_opened(kind, tmp_path, monkeypatch):
    """Whoever writes a file writes its digest too: every field and every tensor is checked, and what opens can be used."""
    scope = diffscope.load(tiny.gpt_oss(layers=1) if kind == "sinks" else tiny.own(num_hidden_layers=1))
    with scope.edit(*([edits.top_k_a1(2), edits.quantise_logits(4)] if kind == "changed" else [])):
        scope.capture([tiny.ids(3), tiny.ids(4)] if kind == "changed" else tiny.ids(4)).save(tmp_path / "whole.dscope")
    tensors, record = open_tensors(tmp_path / "whole.dscope", lambda *parts: parts)
    record = {name: value for name, value in record.items() if name not in ("format", "made_with")}
    used(diffscope.open(tmp_path / "whole.dscope"), tmp_path)
    fields = [path for path in places(record) if kind == "changed" or path[0] == "layers"]  # the others are the same
    wrong = [(path, value) for turn, path in enumerate(fields) for value in wrong_values(turn, at(record, path))]
    hostile = [(tensors, with_value(record, path, value)) for path, value in wrong]
    for name, tensor in tensors.items():
        for other in (*reshaped(tensor), None):
            held = {**tensors, name: other} if other is not None else {each: x for each, x in tensors.items() if each != name}
            hostile.append((held, record))
    monkeypatch.setattr(store, "provenance", lambda *_: {})  # which asks the disk for versions
    monkeypatch.setattr(store, "replacing", nullcontext)
    refused = 0
    for held, fields in hostile:
        save_tensors(tmp_path / "hostile.dscope", held, fields)
        try:
            capture = diffscope.open(tmp_path / "hostile.dscope")
        except CorruptFile as error:
            assert str(error).isprintable() and len(str(error)) < 400
            refused += 1
        else:
            used(capture, tmp_path)
    assert refused > 0.8 * len(hostile)


@pytest.mark.parametrize(
    "path, value, says",
    [
        (("layers", 0, "score_dtype"), "nn", "score_dtype of layer 0 is 'nn', and has to be one of float16, bfloat16"),
        (("layers", 1, "lengths"), [9, 9], r"lengths of layer 1 are \[9, 9\], which do not fit its batch 1"),
        (("layers", 1, "norm", 1), float("nan"), "norm of layer 1 is .* a finite number from 0"),
        (("prompts", 0, "spans", "sink"), [9], r"prompt 0 has the span 'sink' at \[9\], and has tokens 0 to 8"),
        (("proofs", 0, "error"), 0.5, "the proof of layer 0 has an error of 0.5, above its tolerance 2e-05"),
        (("proofs", 0, "lam_within"), 10**30, "lam_within of the proof of layer 0 is 1000.*infinity or NaN"),
        (("facts", "attention"), ABSENT, r"the capture's facts lack the field attention \(text\)"),
        (("proofs",), [], "there are 0 proofs, and there have to be 2"),
        (("facts", "model"), 3, "model of the capture's facts is 3, and has to be text"),
        (("ahead", 0, 0, 1), "often", "ahead of the capture"),
    ],
)
def test_a_wrong_field_of_a_capture_is_named_with_what_it_has_to_be(capture, path, value, says, tmp_path):
    capture.save(tmp_path / "a.dscope")
    tensors, record = open_tensors(tmp_path / "a.dscope", lambda *parts: parts)
    save_tensors(tmp_path / "a.dscope", tensors, with_value(record, path, value))
    with pytest.raises(CorruptFile, match=says):
        diffscope.open(tmp_path / "a.dscope")


@pytest.mark.parametrize(
    "name, change, says",
    [
        ("1.q", lambda q: q[..., :3].clone(), r"k of layer 1 is float32 \(1, 8, 9, 8\), and has to be \(batch key_map key d\)"),
        ("0.pairing.a1", lambda a1: a1 + 7, "a1 of layer 0 holds 7 to 10, and has to hold positions from 0 to 7"),
        ("0.pairing.a1", torch.Tensor.double, "a1 of layer 0 is float64 .* and has to be of int64"),
        ("0.lam", lambda lam: lam * float("nan"), "lam of layer 0 holds NaN"),
        (
            "layer_outliers",
            lambda x: x[:, :, :2].clone(),
            r"layer_outliers is float64 \(2, 1, 2\), and has to be of floats \(2, 1, 6\)",
        ),
    ],
)
def test_a_wrong_tensor_of_a_capture_is_named_with_what_it_has_to_be(capture, name, change, says, tmp_path):
    capture.save(tmp_path / "a.dscope")
    tensors, record = open_tensors(tmp_path / "a.dscope", lambda *parts: parts)
    save_tensors(tmp_path / "a.dscope", {**tensors, name: change(tensors[name])}, record)
    with pytest.raises(CorruptFile, match=says):
        diffscope.open(tmp_path / "a.dscope")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["a.dscope", "a.nc", "a", "study.json"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(diffscope.DiffscopeError, match="no regular file"):
        diffscope.open(tmp_path / name)
    with pytest.raises(diffscope.DiffscopeError, match="there is no|no regular file|name one of the files"):
        diffscope.open(tmp_path)


def test_a_capture_under_an_edit_that_makes_scores_large_opens_again(tmp_path):
    """The error of an edited capture stands beside the tolerance that it was held to, however far the edit moves the scores."""
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(edits.inject_noise(300.0)):
        edited = scope.capture(tiny.ids(9))
    edited.save(tmp_path / "a.dscope")
    opened = diffscope.open(tmp_path / "a.dscope")
    assert (edited.fidelity.error <= edited.fidelity.tolerance).all()
    assert opened.fidelity.identical(edited.fidelity)
