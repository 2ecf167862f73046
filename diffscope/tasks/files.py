"""Read texts and prompts with spans from files, folders and Hugging Face data sets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from diffscope.errors import CorruptFile, MissingExtra, PromptError, SpanError, first_line
from diffscope.prompts.encoded import DERIVED_SETS, Chars
from diffscope.tasks.prompt import TextPrompt

PLAIN = (".txt", ".md")
RECORDS = (".jsonl", ".ndjson", ".json", ".parquet")
# The owner tells a data set of the hub from a mistyped path, and from the loaders that `datasets` calls "json" and "text".
HUB_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:/(\w[\w.-]*))?")
WITH_SPLIT = re.compile(r"(.+?):(\w[\w.+:%\[\]-]*)")  # the first colon after which all can be a split: not that of C:\
KINDS = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", type(None): "null"}

HERE = Path(__file__).parent
EXAMPLES = {
    "retrieval": HERE / "examples.json",
    "text": HERE / "examples_of_text.json",
    "copies": HERE / "examples_of_copies.json",
}

Rows = Iterable[tuple[str, object]]  # where each stands ("FILE, line 3"), and what stands there


def read_texts(source: str | os.PathLike, field: str | None = None) -> tuple[str, ...]:
    """Read texts in a fixed order, without empty ones and nulls.

    Parameters
    ----------
    source : str or path-like
        - a UTF-8 text file: its paragraphs, which blank lines separate (a longer text stays whole in JSONL);
        - a folder: the paragraphs of all .txt and .md files below it, in the order of their paths;
        - .jsonl or .ndjson, an object or a text a line; .json, a list of objects or of texts; .parquet;
        - a folder that ``datasets.save_to_disk`` wrote, ``FOLDER`` or ``FOLDER:SPLIT``;
        - a data set of the Hugging Face hub, ``OWNER/NAME`` or ``OWNER/NAME/CONFIG``, either with ``:SPLIT``, which may be a
          slice such as ``train[:1%]``. Code that comes with the data set is not run.

        Of several splits, ``train`` is read unless one is given.
    field : str, optional
        The field or column that holds the text; by default ``text``, else the only one that holds text.

    Returns
    -------
    tuple of str
        At least one.

    Raises
    ------
    PromptError
        Nothing goes by this name, or there is no text where text is expected.
    CorruptFile
        A file is not UTF-8, broken JSON, or damaged.
    MissingExtra
        The source is a data set, and ``datasets`` is not installed.
    """
    path, split = _located(source)
    if path is None or split or any((path / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
        rows = _data_set_rows(os.fspath(source), path, split, partial(_columns, field=field))
    elif path.suffix.lower() in RECORDS and not path.is_dir():
        rows = list(_records(path, partial(_columns, field=field)))
    elif field is not None:
        raise PromptError(f"{path} is plain text and has no field {field!r}; leave the field out, or give JSONL or Parquet")
    else:
        rows = _paragraphs(path)
    texts = tuple(text for text in _texts(source, rows, field) if text.strip())
    if not texts:
        raise PromptError(f"{source} holds no text; give a file with text in it, or a folder with .txt or .md files")
    return texts


def read_prompts(source: str | os.PathLike | Sequence[dict]) -> tuple[TextPrompt, ...]:
    """Read prompts with spans in the order of a file or list; one without a name is named after its place there.

    Parameters
    ----------
    source : str, path-like, or sequence of dict
        .jsonl or .ndjson with an object a line, .json with a list of objects, or .parquet; or the objects themselves. An object
        has ``prompt``, and may have ``spans`` (each a text that stands in the prompt once, or a list of character ranges
        ``[start, stop]``), ``answer`` (the text expected next), ``distractors`` (a list of other answers) and ``name``. Null
        counts as absent, and other fields are not read.

    Returns
    -------
    tuple of TextPrompt
        At least one.

    Raises
    ------
    PromptError
        There is no such file, or a prompt is missing, empty, or not text.
    SpanError
        A span's text is not in its prompt or stands there more than once, or its range lies outside of it.
    CorruptFile
        The file is not UTF-8, broken JSON, or damaged.
    """
    prompts = tuple(_text_prompt(where, row) for where, row in _prompt_rows(source))
    if not prompts:
        raise PromptError(f'{source or "the list"} holds no prompts; give at least one, such as {{"prompt": "…"}}')
    return prompts


def _prompt_rows(source: str | os.PathLike | Sequence[dict]) -> Rows:
    """Return the objects of a list or of a file of prompts."""
    if isinstance(source, (list, tuple)):
        return ((f"prompt {number}", row) for number, row in enumerate(source))
    if not isinstance(source, (str, os.PathLike)):
        raise PromptError(f"prompts are read of a file or of a list of dictionaries, not of {_kind(source)}")
    path = Path(os.path.expanduser(source))
    if path.suffix.lower() not in RECORDS or not os.path.isfile(path):
        raise PromptError(f"there is no file of prompts {str(source)!r}; give a file that ends in {', '.join(RECORDS)}")
    return _records(path)


def examples(kind: str = "retrieval") -> list[TextPrompt]:
    """Return the prompts that come with diffscope, with the spans ``answer``, ``needles`` and ``query``.

    Parameters
    ----------
    kind : {"retrieval", "text", "copies"}
        Questions whose answers stand in the text; plain text whose next token followed the last two tokens earlier, too; or
        sequences of Bigram-Backcopy (:class:`diffscope.tasks.Backcopy`), for models of that task alone, with its spans
        ``triggers``, ``copied`` and ``dormant`` in place of ``needles``.

    Raises
    ------
    PromptError
        There is no such kind.
    """
    if kind not in EXAMPLES:
        raise PromptError(f"there are no examples of {kind!r}; there are {', '.join(EXAMPLES)}")
    return list(read_prompts(EXAMPLES[kind]))


def _located(source: str | os.PathLike) -> tuple[Path | None, str | None]:
    """Return the path, None for a possible data set of the hub; and the split, None if the source names none."""
    name = os.path.expanduser(source)
    if os.path.exists(name):  # False, where Path.exists raises, for a name too long to be one
        return Path(name), None
    named = WITH_SPLIT.fullmatch(name)
    name, split = named.groups() if named else (name, None)
    if os.path.exists(name):
        return Path(name), split
    hub = HUB_NAME.fullmatch(name)
    # `datasets` would read a folder of the data set's name in its place, with all that is in it.
    if not hub or name.lower().endswith(PLAIN + RECORDS) or os.path.exists(hub[1]):
        raise PromptError(
            f"there is no file or folder {str(source)!r}; check the path, or name a data set of the Hugging Face hub: "
            "OWNER/NAME or OWNER/NAME/CONFIG, either with :SPLIT"
        )
    return None, split


def _decoded(path: Path) -> str:
    """Read a file's text, without a byte order mark."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PromptError(f"{path} cannot be read ({error.strerror}); give a file that you may open") from None
    text = ""
    wrong = [data.find(b"\0")]  # valid UTF-8, but only binary files hold it
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong.append(error.start)
    wrong = min((position for position in wrong if position >= 0), default=None)
    if wrong is not None:
        line = data.count(b"\n", 0, wrong) + 1
        raise CorruptFile(f"{path}, line {line}: byte {wrong} is {data[wrong]:#04x}, expected UTF-8 text; convert the file first")
    return text.removeprefix("\ufeff")


def _paragraphs(path: Path) -> Rows:
    files = [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix.lower() in PLAIN and file.is_file()]
    for file in sorted(files, key=Path.as_posix):
        for paragraph in re.split(r"\n\s*\n", _decoded(file).replace("\r\n", "\n")):
            yield str(file), paragraph.strip()


def _records(path: Path, columns: Callable | None = None) -> Rows:
    """Yield the rows of a Parquet file, the lines of JSONL, or the items of a JSON list."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet_rows(path, columns)
    elif suffix == ".json":
        yield from _json_items(path)
    else:
        for number, line in enumerate(_decoded(path).split("\n"), start=1):  # a text may hold what else splitlines cuts at
            if line.strip():
                yield f"{path}, line {number}", _parsed(path, line, number)


def _json_items(path: Path) -> Rows:
    text = _decoded(path)
    items = _parsed(path, text) if text.strip() else []
    if not isinstance(items, list):
        raise PromptError(f"{path}, line 1: found {_kind(items)}, expected a list of objects; put [ ] around them")
    border = re.compile(r"\s*[\[,]\s*")
    decoder = json.JSONDecoder()
    end = 0
    line = 1
    for number, item in enumerate(items, start=1):  # decoded once more, to know the lines
        begin = border.match(text, end).end()
        line += text.count("\n", end, begin)
        yield f"{path}, line {line} (item {number})", item
        end = decoder.raw_decode(text, begin)[1]
        line += text.count("\n", begin, end)


def _parsed(path: Path, text: str, line: int = 1):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        expected = "an object"
        if path.suffix.lower() == ".json":
            expected = "a list of objects; a file with an object a line ends in .jsonl"
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise CorruptFile(f"{path}, {where}: broken JSON ({error.msg}), expected {expected}") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, or lists too deep
        raise CorruptFile(f"{path}, line {line}: JSON that cannot be read ({error}), expected an object of texts") from None


def _parquet_rows(path: Path, columns: Callable | None) -> Rows:
    from pyarrow import parquet

    with _readable(path, "Parquet file"), parquet.ParquetFile(path) as file:
        return _table_rows(str(path), file.read(columns and columns(file.schema_arrow)))


def _data_set_rows(source: str, path: Path | None, split: str | None, columns: Callable) -> Rows:
    """Read the rows of a data set, saved in the folder `path` or, without a path, on the hub."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra(
            f"reading {source!r} as a data set needs datasets, which cannot be imported ({first_line(error)}): "
            "pip install 'diffscope-attention[data]'"
        ) from None
    data = _fetched(datasets, source, split or "train") if path is None else _saved(datasets, path, split)
    with _readable(source, "data set"):
        table = data.select_columns(columns(data.features.arrow_schema)).with_format("arrow")[:]
        return _table_rows(source, table)


def _fetched(datasets, source: str, split: str):
    name, config = HUB_NAME.fullmatch(source.removesuffix(f":{split}")).groups()
    try:  # before datasets 4, which has no remote code any more, it would ask whether to run such code
        return datasets.load_dataset(name, config, split=split, trust_remote_code=False)
    except Exception as error:  # the hub's client may raise anything
        reason = first_line(error)
        raise PromptError(f"no texts {source!r}: no file or folder, and not to be had from the hub ({reason})") from None


def _saved(datasets, path: Path, split: str | None):
    with _readable(path, "folder of datasets.save_to_disk"):
        data = datasets.load_from_disk(str(path))
    if isinstance(data, dict):
        if (split or "train") not in data:
            raise PromptError(f"{path} has no split {split or 'train'!r}; its splits are {_listed(data)}")
        return data[split or "train"]
    if split:
        raise PromptError(f"{path} is a data set without splits; leave out :{split}")
    return data


@contextmanager
def _readable(name, kind: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pyarrow and datasets may raise anything
        raise CorruptFile(f"{name} is damaged, or no {kind} ({first_line(error)}); copy it again") from None


def _table_rows(name: str, table) -> list[tuple[str, dict]]:
    return [(f"{name}, row {number}", row) for number, row in enumerate(table.to_pylist(maps_as_pydicts="strict"), start=1)]


def _columns(schema, field: str | None) -> list[str]:
    """Return the columns to read: the one named, else ``text``, else all that hold text, else all."""
    if (field or "text") in schema.names:
        return [field or "text"]
    kinds = ("string", "large_string", "dictionary<values=string", "dictionary<values=large_string")
    return [column.name for column in schema if str(column.type).startswith(kinds)] or schema.names


def _texts(source, rows: Rows, field: str | None) -> Iterator[str]:
    """Yield the text of each row in a field; a row that is itself a text counts as an object with the field ``text``."""
    rows = [(where, {"text": row} if isinstance(row, str) else row) for where, row in rows]
    if field is None:
        values = [(name, value) for _, row in rows if isinstance(row, dict) for name, value in row.items()]
        names = {name for name, _ in values} & {"text"} or dict.fromkeys(name for name, value in values if isinstance(value, str))
        if values and len(names) != 1:
            raise PromptError(f"{source} has no field 'text', and as others of text {_listed(names)}; name the one to read")
        field = next(iter(names), "text")
    return (_field(where, row, field) or "" for where, row in rows)


def _field(where: str, row, field: str) -> str | None:
    """Return the text that a row holds in a field, or None for null."""
    if not isinstance(row, dict):
        raise PromptError(f"{where}: found {_kind(row)}, expected an object with a field {field!r}")
    if field not in row:
        raise PromptError(f"{where}: found the fields {_listed(row)}, expected a field {field!r}")
    text = row[field]
    if not isinstance(text, str | None):
        raise PromptError(f"{where}: field {field!r} holds {_kind(text)}, expected text")
    if half := re.search("[\ud800-\udfff]", text or ""):  # JSON can escape half of a pair, which no tokenizer takes
        raise PromptError(f"{where}: field {field!r} has half a character, {half[0]!r}, at {half.start()}, expected whole ones")
    return text


def _text_prompt(where: str, row) -> TextPrompt:
    text = _field(where, row, "prompt")
    if not (text or "").strip():
        raise PromptError(f"{where}: the prompt is empty; give it at least one token of text")
    name, answer = (_field(where, row, field) if field in row else None for field in ("name", "answer"))
    if answer and not answer.strip():
        raise PromptError(f"{where}: the answer is blank; give it a token of text, or leave it out")
    spans = {} if row.get("spans") is None else row["spans"]
    others = [] if row.get("distractors") is None else row["distractors"]
    if not isinstance(spans, dict):
        raise PromptError(f"{where}: field 'spans' holds {_kind(spans)}, expected an object of names and texts or ranges")
    ranges = {key: _ranges(f"{where}: span {key!r}", text, key, span) for key, span in spans.items() if span is not None}
    return TextPrompt(name or Path(where).name, text, ranges, answer or None, _others(where, others))


def _others(where: str, texts) -> tuple[str, ...]:
    """Check the distractors of a prompt."""
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise PromptError(f"{where}: field 'distractors' holds {_kind(texts)}, expected a list of texts")
    return tuple(texts)


def _ranges(which: str, prompt: str, name: str, span) -> list[Chars]:
    """Return the character ranges of a span, which is given as a text or a list of ranges."""
    if name in DERIVED_SETS:
        raise SpanError(f"{which} follows from the other spans and cannot be given; choose another name")
    if isinstance(span, str) and span.strip():
        starts = [match.start() for match in re.finditer(f"(?={re.escape(span)})", prompt)]
        if not starts:
            raise SpanError(f"{which}: {span!r} is not in the prompt; check its spelling, or give character ranges")
        if len(starts) > 1:
            places = f"{len(starts)} times in the prompt, first at characters {starts[0]} and {starts[1]}"
            raise SpanError(f"{which}: {span!r} stands {places}; say which by its range [start, stop]")
        return [Chars(starts[0], starts[0] + len(span))]
    pairs = span if isinstance(span, (list, tuple)) else []
    if not pairs or not all(isinstance(pair, (list, tuple)) and [type(bound) for bound in pair] == [int, int] for pair in pairs):
        raise SpanError(f"{which} is {_kind(span)}, expected a text, or a list of character ranges [[start, stop], …]")
    for start, stop in pairs:
        if not 0 <= start < stop <= len(prompt):
            raise SpanError(f"{which} asks for characters {start} to {stop} of a prompt of {len(prompt)}; give a range inside it")
    return [Chars(*pair) for pair in pairs]


def _kind(value) -> str:
    """Describe the kind of a value, and how it begins, for messages."""
    return f"{KINDS.get(type(value), type(value).__name__)} ({ascii(value)[:40]})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
