"""The corpus of the study's language models: 42 MB of running English out of Debian's documentation.

    python -m studies.subtraction.corpus build FOLDER
    python -m studies.subtraction.corpus show FOLDER

The first fetches the packages with apt (nothing is installed) and writes what ``--text FOLDER`` takes. The second prints what is
in such a folder: sizes, perplexities of models that only count, and ten paragraphs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from diffscope.errors import DiffscopeError
from diffscope.storage.atomic import remove, write_json
from diffscope.tasks.text import encode_texts
from diffscope.tasks.text_folder import HELD_OUT, OTHER_DOMAIN, RECORD, SPLITS, TOKENIZER, TRAIN, TextFolder, sha256
from studies.subtraction import debian, ngrams, readers

RECORDED = Path(__file__).with_name(RECORD)  # of the corpus that the study is of
HELD_OUT_BYTES = 1_000_000
ENDS = 60  # letters at either end of a paragraph, by which near-duplicates are known
OTHER = "anarchism"  # held out whole
PACKAGES = {  # the paths in each package whose files are English text
    "linux-doc-6.12": r"/html/(?!translations/).*\.html$|/Documentation/(?!translations/).*\.txt\.gz$",
    "python3.11-doc": r"/html/.*\.html$",
    "postgresql-doc-15": r"/html/.*\.html$",
    "python-django-doc": r"/html/.*\.html$",
    "cppreference-doc-en-html": r"/html/en/.*\.html$",
    "debian-handbook": r"/html/en-US/.*\.html$",
    "gnome-user-docs": r"/help/C/.*\.page$",
    "perl-doc": r"/pod/.*\.pod$",
    "git-doc": r"\.html$|/RelNotes/.*\.txt(\.gz)?$",
    "apache2-doc": r"/manual/en/.*\.html$",
    OTHER: r"/html/.*\.html$",
}


@dataclass
class Paragraph:
    """A paragraph of running English."""

    package: str
    document: str  # the package and the path in it
    text: str


@dataclass
class Sizes:
    """How much text there is."""

    documents: int = 0
    paragraphs: int = 0
    bytes: int = 0
    tokens: int = 0


@dataclass
class Duplicates:
    """How much text was left out since it stands elsewhere."""

    paragraphs: int = 0
    bytes: int = 0
    by_package: Counter = field(default_factory=Counter)  # paragraphs


def build(folder: Path, packages: Path, recorded: dict | None) -> dict:
    """Build the corpus and return its record, which is also written, last of all.

    Parameters
    ----------
    folder : Path
        Where to.
    packages : Path
        Where the packages are, or are downloaded to.
    recorded : dict or None
        The record of the corpus that is to be built again, whose versions of the packages are preferred.
    """
    fetched = [debian.fetch(name, (recorded or {}).get("packages", {}).get(name), packages) for name in PACKAGES]
    paragraphs, duplicates = without_near_duplicates(paragraph for package in fetched for paragraph in paragraphs_of(package))
    splits = split_by_document(paragraphs)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as workspace:
        for split, inside in splits.items():
            write_paragraphs(Path(workspace, f"{split}.jsonl"), inside)
        built = TextFolder(workspace)
        tokenizer = built.tokenizer()
        files = sorted(file for file in built.path.rglob("*") if file.is_file())
        record = {
            "digest": built.digest,
            "files": {file.relative_to(built.path).as_posix(): sha256(file) for file in files},
            **described(splits, fetched, duplicates, tokenizer),
        }
        move_into(folder, built.path, record)
    return record


def paragraphs_of(package: debian.Fetched) -> Iterator[Paragraph]:
    """Yield the paragraphs of a package, document by document in the order of their names."""
    print(f"reading {package.name} {package.version}", file=sys.stderr)
    texts = {path: readers.running_english(path, data) for path, data in debian.members(package, PACKAGES[package.name])}
    for path in sorted(texts):
        for text in texts[path]:
            yield Paragraph(package.name, f"{package.name}/{path}", text)


def without_near_duplicates(paragraphs: Iterable[Paragraph]) -> tuple[list[Paragraph], Duplicates]:
    """Return the paragraphs, of those with the same letters at both ends the first, and how much that left out."""
    seen, first, left_out = set(), [], Duplicates()
    for paragraph in paragraphs:
        letters = re.sub("[^a-z]", "", paragraph.text.lower())
        ends = (letters[:ENDS], letters[-ENDS:])
        if ends in seen:
            left_out.paragraphs += 1
            left_out.bytes += len(paragraph.text.encode())
            left_out.by_package[paragraph.package] += 1
        else:
            seen.add(ends)
            first.append(paragraph)
    return first, left_out


def split_by_document(paragraphs: list[Paragraph]) -> dict[str, list[Paragraph]]:
    """Return the paragraphs of each split: one package is another domain; documents are held out by a hash of their name."""
    sizes: Counter = Counter()
    for paragraph in paragraphs:
        sizes[paragraph.document] += (paragraph.package != OTHER) * len(paragraph.text.encode())
    held_out, size = set(), 0
    for document in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if size < HELD_OUT_BYTES and sizes[document]:
            held_out.add(document)
            size += sizes[document]

    def split_of(paragraph: Paragraph) -> str:
        if paragraph.package == OTHER:
            return OTHER_DOMAIN
        return HELD_OUT if paragraph.document in held_out else TRAIN

    splits: dict[str, list[Paragraph]] = {split: [] for split in SPLITS}
    for paragraph in paragraphs:
        splits[split_of(paragraph)].append(paragraph)
    return splits


def write_paragraphs(file: Path, paragraphs: list[Paragraph]) -> None:
    """Write paragraphs as JSONL."""
    with open(file, "w", encoding="utf-8", newline="\n") as opened:
        for paragraph in paragraphs:
            opened.write(json.dumps({"document": paragraph.document, "text": paragraph.text}, ensure_ascii=False) + "\n")


def described(splits: dict[str, list[Paragraph]], fetched: list[debian.Fetched], duplicates: Duplicates, tokenizer) -> dict:
    """Return the sizes by split and by package, with the versions of the packages."""
    by_split = {split: Sizes() for split in splits}
    by_package = {package.name: Sizes() for package in fetched}
    for split, paragraphs in splits.items():
        documents = Counter({paragraph.document: paragraph.package for paragraph in paragraphs}.values())
        by_split[split].documents = documents.total()
        for package, count in documents.items():
            by_package[package].documents += count
        lengths = token_counts(tokenizer, [paragraph.text for paragraph in paragraphs])
        for paragraph, tokens in zip(paragraphs, lengths):
            for sizes in (by_split[split], by_package[paragraph.package]):
                sizes.paragraphs += 1
                sizes.bytes += len(paragraph.text.encode())
                sizes.tokens += tokens
    packages = {
        package.name: {
            "version": package.version,
            "sha256": package.sha256,
            **asdict(by_package[package.name]),
            "near_duplicates": duplicates.by_package[package.name],
        }
        for package in fetched
    }
    return {
        "splits": {split: asdict(sizes) for split, sizes in by_split.items()},
        "packages": packages,
        "near_duplicates": {"paragraphs": duplicates.paragraphs, "bytes": duplicates.bytes},
    }


def token_counts(tokenizer, texts: list[str]) -> Iterator[int]:
    """Yield the number of tokens of each text as it stands in the corpus, after another."""
    return map(len, encode_texts(tokenizer, texts))


def move_into(folder: Path, built: Path, record: dict) -> None:
    """Put a complete corpus in the place of an older one; the record, by which it is known, goes first and comes last."""
    remove(folder / RECORD)
    remove(folder / TOKENIZER)
    for item in sorted(built.iterdir()):
        item.replace(folder / item.name)
    write_json(folder / RECORD, record, indent=1)


def compare(record: dict, recorded: dict | None) -> list[str]:
    """Return in lines how a corpus that was built differs from the recorded one."""
    if recorded is None:
        return [f"{record['digest']}; none is recorded"]
    if record["digest"] == recorded["digest"]:
        return [f"{record['digest']}, as recorded"]
    lines = [f"{record['digest']}, which is not the recorded {recorded['digest']}"]
    for name, package in record["packages"].items():
        before = recorded["packages"].get(name, {}).get("version", "none")
        if package["version"] != before:
            lines.append(f"  {name} is {package['version']}, and {before} is recorded")
    if len(lines) == 1:
        lines.append("  the packages are the recorded ones, so the reading of them or the tokenizers library has changed")
    return lines


def show(folder: Path, seed: int) -> Iterator[str]:
    """Yield in lines what is in a folder of text: sizes, perplexities, ten paragraphs."""
    opened = TextFolder(folder)
    yield f"{opened.path}: {opened.digest}"
    if opened.record is not None:
        yield from sizes_in_lines(opened.record)
    yield from perplexities_in_lines(opened)
    yield f"Ten paragraphs of {TRAIN}, drawn with seed {seed}:"
    texts = opened.texts(TRAIN)
    for at in np.random.default_rng(seed).choice(len(texts), size=min(10, len(texts)), replace=False):
        yield f"  {texts[at]}"


def sizes_in_lines(record: dict) -> Iterator[str]:
    """Yield the table of splits and packages of a record."""
    yield f"{'':26} {'documents':>9} {'paragraphs':>10} {'MB':>6} {'tokens':>11} {'bytes a token':>13}  version"
    for name, sizes in (record["splits"] | record["packages"]).items():
        ratio = sizes["bytes"] / max(sizes["tokens"], 1)
        texts = f"{sizes['documents']:9,} {sizes['paragraphs']:10,} {sizes['bytes'] / 1e6:6.2f}"
        yield f"{name:26} {texts} {sizes['tokens']:11,} {ratio:13.2f}  {sizes.get('version', '')}".rstrip()
    left_out = record["near_duplicates"]
    shares = [left_out[what] / (left_out[what] + sum(sizes[what] for sizes in record["splits"].values())) for what in left_out]
    yield f"Near-duplicates left out: {shares[0]:.1%} of the paragraphs, {shares[1]:.1%} of the bytes."


def perplexities_in_lines(opened: TextFolder) -> Iterator[str]:
    """Yield a table of the perplexities of unigrams and trigrams of the text to train on."""
    tokenizer = opened.tokenizer()
    train = opened.filler(TRAIN, tokenizer).ids
    models = {kind.__name__: kind.of(train, len(tokenizer)) for kind in (ngrams.Unigrams, ngrams.Trigrams)}
    yield f"Perplexity per token, of counts in {len(train):,} tokens: {'':6}" + "".join(f"{name:>10}" for name in models)
    for split in opened.splits[1:]:
        ids = opened.filler(split, tokenizer).ids
        yield f"  {split:15} {len(ids):10,} tokens {'':23}" + "".join(
            f"{ngrams.perplexity(model, ids):10.1f}" for model in models.values()
        )


def main(arguments: list[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m studies.subtraction.corpus", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="fetch the packages and write the corpus")
    building.add_argument("folder", type=Path)
    building.add_argument("--packages", type=Path, help="where the packages are or go; by default FOLDER/packages")
    showing = commands.add_parser("show", help="print what is in a folder of text")
    showing.add_argument("folder", type=Path)
    showing.add_argument("--seed", type=int, default=0, help="of the ten paragraphs")
    options = parser.parse_args(arguments)
    try:
        if options.command == "show":
            lines: Iterable[str] = show(options.folder, options.seed)
        else:
            recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.is_file() else None
            record = build(options.folder, options.packages or options.folder / "packages", recorded)
            lines = [*sizes_in_lines(record), *compare(record, recorded)]
        for line in lines:
            print(line)
    except DiffscopeError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
