"""A user's own texts and prompts are read as they are from every format, or refused in one line that says where and why."""

import json
import sys
from dataclasses import asdict, replace

import pyarrow as pa
import pytest
from pyarrow import parquet

from diffscope.errors import CorruptFile, MissingExtra, PromptError, SpanError
from diffscope.prompts.encoded import Chars, encode
from diffscope.tasks.files import read_prompts, read_texts
from tests import tiny

TEXTS = ("one\u2028line, no more", "  zwei  ", "drei 🙂")
HELD = (TEXTS[0], "", TEXTS[1], None, TEXTS[2], " \n")  # with what is left out
PROMPT = "Paris 7421, Rome 1234. Rome 1234?"


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


def write(path, content):
    """A file of what is given: bytes, text, a Table, or what JSON holds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
        parquet.write_table(content, path)
    elif isinstance(content, bytes | str):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif path.suffix == ".json":
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    else:
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in content) + "\n", encoding="utf-8")
    return path


def refused(error, message, read, *arguments):
    """Reading fails with one line that matches all parts of the message."""
    with pytest.raises(error) as raised:
        read(*arguments)
    line = str(raised.value)
    assert "\n" not in line
    for part in message if isinstance(message, tuple) else (message,):
        assert part in line


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.PARQUET"])
@pytest.mark.parametrize(
    "columns, field",
    [
        ({"id": range(6), "title": ["x"] * 6, "text": HELD}, None),
        ({"id": range(6), "body": HELD, "score": [0.5] * 6}, None),
        ({"id": range(6), "text": ["x"] * 6, "body": HELD}, "body"),
    ],
    ids=["text", "the only one", "named"],
)
def test_texts_of_records(tmp_path, name, columns, field):
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    content = pa.Table.from_pylist(rows) if name == "a.PARQUET" else rows
    assert read_texts(write(tmp_path / name, content), field) == TEXTS


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_rows_that_are_texts(tmp_path, name):
    assert read_texts(write(tmp_path / name, list(TEXTS))) == TEXTS


@pytest.mark.parametrize("type_", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_a_parquet_column_of_any_kind_of_text_counts(tmp_path, type_):
    columns = {"id": [1, 2], "body": pa.array(["a", "b"]).cast(type_)}
    assert read_texts(write(tmp_path / "a.parquet", pa.table(columns))) == ("a", "b")
    file = write(tmp_path / "b.parquet", pa.table({"title": ["x", "y"], **columns}))
    refused(PromptError, "'title', 'body'; name the one to read", read_texts, file)


def test_a_text_file_is_its_paragraphs(tmp_path):
    file = write(tmp_path / "notes.log", b"\xef\xbb\xbf\r\n first\r\nline\r\n \t\r\n\r\n  second\n\n\n")
    assert read_texts(str(file)) == ("first\nline", "second")


def test_a_folder_is_its_text_files_in_order(tmp_path):
    for name in ("b.md", "a/z.TXT", "a/x.txt", "c.txt", "c/0.txt", "skipped.py", "skipped.jsonl"):
        write(tmp_path / "texts.json" / name, f"1 {name}\n\n2 {name}")
    read = read_texts(tmp_path / "texts.json")
    assert read == tuple(f"{n} {name}" for name in ("a/x.txt", "a/z.TXT", "b.md", "c.txt", "c/0.txt") for n in (1, 2))


def test_saved_data_sets(tmp_path, datasets):
    train = datasets.Dataset.from_dict({"id": [1, 2, 3], "body": ["a", "", "b"]}).select([2, 1, 0])
    train.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"other": train.select([0]), "train": train}).save_to_disk(tmp_path / "splits")
    assert read_texts(tmp_path / "one") == ("b", "a") == read_texts(tmp_path / "splits")
    assert read_texts(f"{tmp_path / 'splits'}:other") == ("b",)
    refused(PromptError, ("splits has no split 'dev'", "'other', 'train'"), read_texts, f"{tmp_path / 'splits'}:dev")
    refused(PromptError, "without splits; leave out :train", read_texts, f"{tmp_path / 'one'}:train")
    refused(PromptError, ("row 1", "field 'id' holds a number (3), expected text"), read_texts, tmp_path / "one", "id")
    arrow = next((tmp_path / "one").glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:200])
    refused(CorruptFile, (str(tmp_path / "one"), "damaged"), read_texts, tmp_path / "one")


@pytest.mark.parametrize(
    "source, arguments",
    [
        ("me/mine", ("me/mine", None, "train")),
        ("me/mine:test", ("me/mine", None, "test")),
        ("me/mine/v1.0", ("me/mine", "v1.0", "train")),
        ("me/mine/v1.0:train[:1%]+test", ("me/mine", "v1.0", "train[:1%]+test")),
    ],
)
def test_a_data_set_of_the_hub_is_asked_for_by_name(monkeypatch, datasets, source, arguments):
    def load_dataset(name, config, split, trust_remote_code):
        assert trust_remote_code is False
        return datasets.Dataset.from_dict({"text": list((name, config or "-", split))})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_texts(source) == (arguments[0], arguments[1] or "-", arguments[2])


def test_a_data_set_that_is_not_to_be_had(monkeypatch, datasets):
    refused(
        PromptError, ("'nobody/nothing:train'", "not to be had from the hub (Couldn't reach"), read_texts, "nobody/nothing:train"
    )
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(MissingExtra, ("'nobody/nothing'", "diffscope-attention[data]"), read_texts, "nobody/nothing")


@pytest.mark.parametrize(
    "source", ["", "absent", "me/notes.txt", "./absent/folder", "json:train", "here/is/config", "a text " * 99]
)
def test_what_is_no_name_is_looked_for_nowhere(tmp_path, monkeypatch, source):
    """Least of all by `datasets`, which would read a folder by that name, or what is in this one."""
    write(tmp_path / "here" / "is" / "a.txt", "private")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(PromptError, ("no file or folder", repr(source), "OWNER/NAME"), read_texts, source)


DAMAGED = [
    ("a.txt", b"one\ntwo \xff", ("line 2: byte 8 is 0xff", "expected UTF-8")),
    ("a.bin", b"one\n\n\x00\xff", ("line 3: byte 5 is 0x00", "expected UTF-8")),
    ("a.jsonl", b'{"text": "a"}\n{"text": "\xe9"}', ("line 2: byte 24 is 0xe9", "expected UTF-8")),
    ("a.jsonl", '{"text": "a"}\n\n{"text": b}', ("line 3, column 10: broken JSON", "expected an object")),
    ("a.json", '[{"text": "a"},\n {"text" "b"}]', ("line 2, column 10: broken JSON", "expected a list")),
    ("a.json", '{"text": "a"}\n{"text": "b"}', ("line 2, column 1: broken JSON", "ends in .jsonl")),
    ("a.jsonl", '{"text": "a"}\n{"text": ' + "[" * 99_999, ("line 2: JSON that cannot be read (maximum recursion",)),
    ("a.jsonl", "1" * 5000, ("line 1: JSON that cannot be read",)),
    ("a.parquet", b"PAR1 and no more", ("damaged, or no Parquet file",)),
    ("a.parquet", b"", ("damaged, or no Parquet file",)),
]


@pytest.mark.parametrize("name, content, message", DAMAGED)
def test_a_damaged_file_is_said_to_be_so(tmp_path, name, content, message):
    file = write(tmp_path / name, content)
    refused(CorruptFile, (str(file), *message), read_texts, file)


@pytest.mark.parametrize(
    "name, content, field, message",
    [
        ("a.jsonl", [{"text": "a"}, ["b"]], None, ("line 2: found a list (['b']), expected an object with a field 'text'",)),
        ("a.jsonl", [1, 2], None, ("line 1: found a number (1), expected an object",)),
        ("a.jsonl", '{"text": "a"}\n\n{"txt": "b"}', None, ("line 3: found the fields 'txt', expected a field 'text'",)),
        ("a.jsonl", [{"a": "x", "b": "x"}], "c", ("line 1: found the fields 'a', 'b', expected a field 'c'",)),
        ("a.jsonl", [{"text": "a"}, {"text": True}], None, ("line 2: field 'text' holds bool (True), expected text",)),
        ("a.jsonl", ['{"text": "a"}', "x"], "body", ("line 1: found the fields 'text', expected a field 'body'",)),
        ("a.jsonl", '{"text": "ab\\ud83d"}', None, ("line 1: field 'text' has half a character", "at 2")),
        ("a.json", [{"text": "a", "n": [1]}, {"text": 2}], None, ("line 8 (item 2): field 'text' holds a number (2)",)),
        ("a.json", '[{"text": "a"}, {"text": 2}]', None, ("line 1 (item 2): field 'text' holds a number (2)",)),
        ("a.json", {"text": ["a"]}, None, ("line 1: found an object", "expected a list of objects")),
        ("a.jsonl", [{"title": "a", "body": "b", "n": 1}], None, ("no field 'text'", "'title', 'body'; name the one")),
        ("a.parquet", pa.table({"title": ["a"], "body": ["b"], "n": [1]}), None, ("no field 'text'", "'title', 'body'; name")),
        ("a.parquet", pa.table({"n": [1]}), None, ("no field 'text'", "others of text none")),
        ("a.parquet", pa.table({"text": ["a"]}), "body", ("row 1: found the fields 'text', expected a field 'body'",)),
        ("a.parquet", pa.table({"text": [None, 2]}), None, ("row 2: field 'text' holds a number (2), expected text",)),
        ("a.txt", "a", "body", ("plain text and has no field 'body'",)),
        ("a.txt", " \n\n", None, ("holds no text",)),
        ("a.json", "", None, ("holds no text",)),
        ("a.jsonl", [{"text": " "}, {"text": None}], None, ("holds no text",)),
        ("a.parquet", pa.table({"text": pa.array([], pa.string())}), None, ("holds no text",)),
    ],
)
def test_what_is_not_text_is_named_with_its_place(tmp_path, name, content, field, message):
    file = write(tmp_path / name, content)
    refused(PromptError, (str(file), *message), read_texts, file, field)


def test_a_folder_without_text_files_is_refused(tmp_path):
    write(tmp_path / "a.jsonl", [{"text": "a"}])
    refused(PromptError, (str(tmp_path), "holds no text", ".txt or .md"), read_texts, tmp_path)


@pytest.mark.parametrize("name", ["p.jsonl", "p.json", "p.parquet"])
def test_prompts_with_spans(tmp_path, name):
    rows = [
        {"prompt": PROMPT, "spans": {"answer": "7421", "query": "Rome 1234?"}, "answer": "7421", "name": "first", "more": 1},
        {"prompt": "🙂 plain", "spans": None, "answer": None},
        {"prompt": PROMPT, "spans": {"needles": [[12, 21], [23, 32]]}, "answer": ""},
    ]
    file = write(tmp_path / name, pa.Table.from_pylist(rows) if name == "p.parquet" else rows)
    first, plain, third = read_prompts(str(file))
    listed = read_prompts(rows)
    assert [replace(prompt, name="") for prompt in listed] == [replace(prompt, name="") for prompt in (first, plain, third)]
    assert [prompt.name for prompt in listed] == ["first", "prompt 1", "prompt 2"]
    again = [{**asdict(prompt), "prompt": prompt.text} for prompt in listed]
    assert read_prompts(again) == listed
    assert (first.name, first.text, first.answer) == ("first", PROMPT, "7421")
    assert first.spans == {"answer": [Chars(6, 10)], "query": [Chars(23, 33)]}
    assert (plain.text, plain.spans, plain.answer) == ("🙂 plain", {}, None)
    assert third.spans == {"needles": [Chars(12, 21), Chars(23, 32)]} and third.answer is None
    assert third.name.startswith(f"{name}, ") and third.name != plain.name
    encoded = encode(tiny.tokenizer(), third.text, third.spans)  # as a capture takes them
    assert "".join(encoded.tokens[at] for at in encoded.spans["needles"]).replace(" ", "") == "Rome1234Rome1234"


def test_prompts_from_a_parquet_map(tmp_path):
    spans = pa.array([[("answer", "7421")]], pa.map_(pa.string(), pa.string()))
    file = write(tmp_path / "p.parquet", pa.table({"prompt": [PROMPT], "spans": spans}))
    assert read_prompts(file)[0].spans == {"answer": [Chars(6, 10)]}


@pytest.mark.parametrize(
    "span, message",
    [
        ({"answer": "9"}, "span 'answer': '9' is not in the prompt"),
        ({"answer": "Rome 1234"}, "span 'answer': 'Rome 1234' stands 2 times in the prompt, first at characters 12 and 23"),
        ({"answer": " "}, "span 'answer' is text (' '), expected a text, or a list of character ranges"),
        ({"answer": [6, 10]}, "span 'answer' is a list ([6, 10]), expected"),
        ({"answer": [[6, 10], [6]]}, "span 'answer' is a list ([[6, 10], [6]]), expected"),
        ({"answer": [[6, 10.5]]}, "span 'answer' is a list ([[6, 10.5]]), expected"),
        ({"answer": []}, "span 'answer' is a list ([]), expected"),
        ({"answer": [[6, 34]]}, "span 'answer' asks for characters 6 to 34 of a prompt of 33"),
        ({"answer": [[-4, 3]]}, "span 'answer' asks for characters -4 to 3"),
        ({"answer": [[6, 6]]}, "span 'answer' asks for characters 6 to 6"),
        ({"context": "7421"}, "span 'context' follows from the other spans"),
    ],
)
def test_a_span_that_is_not_there_is_named_with_its_place(tmp_path, span, message):
    file = write(tmp_path / "p.jsonl", [{"prompt": PROMPT}, {"prompt": PROMPT, "spans": span}])
    refused(SpanError, f"{file}, line 2: {message}", read_prompts, file)


def test_overlapping_occurrences_are_occurrences(tmp_path):
    file = write(tmp_path / "p.jsonl", [{"prompt": "banana", "spans": {"answer": "ana"}}])
    refused(SpanError, "stands 2 times in the prompt, first at characters 1 and 3", read_prompts, file)


@pytest.mark.parametrize(
    "row, message",
    [
        ("Paris", "found text ('Paris'), expected an object with a field 'prompt'"),
        ({"text": "a"}, "found the fields 'text', expected a field 'prompt'"),
        ({"prompt": ["a"]}, "field 'prompt' holds a list (['a']), expected text"),
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": None}, "the prompt is empty"),
        ({"prompt": "a", "answer": 7421}, "field 'answer' holds a number (7421), expected text"),
        ({"prompt": "a", "name": 1}, "field 'name' holds a number (1), expected text"),
        ({"prompt": "a", "spans": [[0, 1]]}, "field 'spans' holds a list ([[0, 1]]), expected an object"),
        ({"prompt": "a", "spans": 0}, "field 'spans' holds a number (0), expected an object"),
        ({"prompt": "a", "spans": []}, "field 'spans' holds a list ([]), expected an object"),
        ({"prompt": "a", "distractors": ""}, "field 'distractors' holds text (''), expected a list"),
        ({"prompt": "a", "answer": "  "}, "the answer is blank"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_place(tmp_path, row, message):
    file = write(tmp_path / "p.jsonl", [{"prompt": PROMPT}, row])
    refused(PromptError, f"{file}, line 2: {message}", read_prompts, file)


def test_prompts_come_from_files_that_can_hold_them(tmp_path):
    for source in (tmp_path, tmp_path / "absent.jsonl", write(tmp_path / "p.txt", "a")):
        refused(PromptError, (str(source), ".jsonl, .ndjson, .json, .parquet"), read_prompts, source)
    refused(PromptError, "holds no prompts", read_prompts, write(tmp_path / "p.json", []))
    refused(PromptError, "the list holds no prompts", read_prompts, [])
    refused(PromptError, "of a file or of a list of dictionaries, not of an object", read_prompts, {"prompt": "a"})
    refused(PromptError, "prompt 1: found text", read_prompts, [{"prompt": "a"}, "b"])
    refused(CorruptFile, "damaged, or no Parquet file", read_prompts, write(tmp_path / "p.parquet", b"PAR1"))
