"""Read a folder of running text: a split to train on, a held-out one, and perhaps another domain and a tokenizer.

The text of each split is in ``SPLIT.jsonl``, an object with a ``text`` a line, or in the .txt and .md files of a folder
``SPLIT``. A ``corpus.json`` beside them says what each file has to be. Tokens are kept in ``tokens/``, by what they were made of.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from diffscope.errors import CorruptFile, DiffscopeError, PromptError, first_line
from diffscope.storage.atomic import remove, replacing
from diffscope.storage.checksum import check_sums, write_sums
from diffscope.tasks.files import PLAIN, read_texts
from diffscope.tasks.text import TextStream, encode_texts, word_begins
from diffscope.tasks.tokenizer import UNKNOWN, train_tokenizer

TRAIN, HELD_OUT, OTHER_DOMAIN = "train", "held_out", "other_domain"
SPLITS = (TRAIN, HELD_OUT, OTHER_DOMAIN)
RECORD = "corpus.json"
TOKENIZER = "tokenizer"
TOKENS = "tokens"
VOCABULARY = 4096  # of a tokenizer that is trained, before cities and numbers
ANEW = "build or copy the folder anew"


class TextFolder:
    """A folder of text.

    Parameters
    ----------
    path : path-like

    Attributes
    ----------
    path : Path
    splits : tuple of str
        Of ``train``, ``held_out`` and ``other_domain``, those that are there; the first two always are.
    record : dict or None
        The folder's corpus.json.

    Raises
    ------
    PromptError
        It is no folder, or lacks a text to train on or a held-out one.
    CorruptFile
        A file is not what corpus.json says.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(os.path.expanduser(path))
        self.splits = tuple(split for split in SPLITS if self._source(split) is not None)
        for split in (TRAIN, HELD_OUT):
            if split not in self.splits:
                raise PromptError(f"{self.path} has no {split}.jsonl and no folder {split} of .txt files; add either")
        self.record = self._checked_record()

    def texts(self, split: str) -> tuple[str, ...]:
        """Return the texts of a split, in the order of the files."""
        return read_texts(self._source_of(split))

    @cached_property
    def digest(self) -> str:
        """``sha256:`` and the SHA-256 of all texts, and of the vocabulary and merges of the tokenizer if the folder has one.

        What else the libraries write into a tokenizer's files changes with their versions, and is left out.
        """
        digest = hashlib.sha256()
        for split in self.splits:
            digest.update(f"{split} {self.text_digest(split)}\n".encode())
        if (self.path / TOKENIZER).is_dir():
            digest.update(f"{TOKENIZER} {_learned(self.path / TOKENIZER / 'tokenizer.json')}\n".encode())
        return f"sha256:{digest.hexdigest()}"

    def text_digest(self, split: str) -> str:
        """Return the SHA-256 of the files of a split, and of their names if they are several."""
        source = self._source_of(split)
        if source.is_file():
            return sha256(source)
        files = [(file.relative_to(source).as_posix(), file) for file in _text_files(source)]
        return hashlib.sha256("".join(f"{sha256(file)}  {name}\n" for name, file in sorted(files)).encode()).hexdigest()

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the folder's tokenizer; if there is none, train one on the split ``train`` and save it there.

        Raises DiffscopeError if the folder has a record and no tokenizer, so that it would not be what the record says any more,
        and CorruptFile if the tokenizer cannot be read.
        """
        folder = self.path / TOKENIZER
        if not folder.is_dir():
            if self.record is not None:
                raise DiffscopeError(
                    f"{self.path} has a {RECORD} and no tokenizer, which its digest is of too; add one, or remove {RECORD}"
                )
            learned = train_tokenizer(self.texts(TRAIN), VOCABULARY, words=[UNKNOWN])
            if not folder.is_dir():  # another process may have trained the same meanwhile
                with replacing(folder) as unfinished:
                    learned.save_pretrained(unfinished)
            self.__dict__.pop("digest", None)
        try:
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # of a damaged tokenizer the libraries raise anything
            raise CorruptFile(f"{folder} holds no tokenizer that can be read ({first_line(error)}); {ANEW}") from None

    def filler(self, split: str, tokenizer: PreTrainedTokenizerBase) -> TextStream:
        """Return the tokens of a split, from which windows are drawn.

        They are encoded once and then mapped from a file of ``tokens/``, which is made anew if the text, the tokenizer or the
        file itself has changed.

        Raises PromptError if there is no such split, it holds no text, or the tokenizer cannot encode it piece by piece.
        """
        made_of = f"{self.text_digest(split)} {_encodes(tokenizer)}"
        place = self.path / TOKENS / f"{split}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
        try:
            if place.is_dir():
                check_sums(place)
                return _mapped(place)
        except (CorruptFile, OSError, ValueError):
            remove(place)
        self._encode(split, tokenizer, place)
        return _mapped(place)

    def _encode(self, split: str, tokenizer: PreTrainedTokenizerBase, place: Path) -> None:
        """Write the tokens of a split; if two processes do so at once, the first to finish does it for both."""
        texts = self.texts(split)
        try:
            place.parent.mkdir(exist_ok=True)
            workspace = Path(tempfile.mkdtemp(dir=place.parent, prefix=".unfinished-"))
        except OSError as error:
            raise DiffscopeError(
                f"tokens cannot be kept in {place.parent} ({error.strerror}); copy the folder elsewhere"
            ) from None
        try:
            made = workspace / place.name
            made.mkdir()
            begins = word_begins(tokenizer)
            kind = np.uint16 if len(begins) <= 2**16 else np.uint32
            ids = np.fromiter(chain.from_iterable(encode_texts(tokenizer, texts)), dtype=kind)  # (token,)
            np.save(made / "ids.npy", ids)
            np.save(made / "cuts.npy", begins[ids])
            write_sums(made, ("ids.npy", "cuts.npy"))
            try:
                made.rename(place)
            except OSError:
                if not place.is_dir():
                    raise
        finally:
            remove(workspace)

    def _source(self, split: str) -> Path | None:
        """Return the file or folder of a split, or None."""
        file, folder = self.path / f"{split}.jsonl", self.path / split
        if file.is_file():
            return file
        return folder if folder.is_dir() and any(_text_files(folder)) else None

    def _source_of(self, split: str) -> Path:
        source = self._source(split)
        if source is None:
            raise PromptError(f"{self.path} has no text {split!r}; it has {', '.join(self.splits)}")
        return source

    def _checked_record(self) -> dict | None:
        """corpus.json, if there is one, of files that are what it says."""
        file = self.path / RECORD
        if not file.is_file():
            return None
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            files, digest = dict(record["files"]), str(record["digest"])
        except (ValueError, KeyError, TypeError):
            raise CorruptFile(f"{file} is no record of a corpus, which has 'digest' and 'files'; {ANEW}") from None
        for name, wanted in files.items():
            if not (self.path / name).is_file():
                raise CorruptFile(f"{self.path} lacks {name}, which its {RECORD} names; {ANEW}")
            if sha256(self.path / name) != wanted:
                raise CorruptFile(f"{self.path / name} is not the file that {RECORD} names, but of another digest; {ANEW}")
        if self.digest != digest:
            raise CorruptFile(f"{self.path} has the digest {self.digest}, and its {RECORD} says {digest}; {ANEW}")
        return record


def require_digest(folder: str | os.PathLike, wanted: str) -> TextFolder:
    """Open a folder of text and refuse one that is not the corpus of a study.

    Raises DiffscopeError if the folder is another corpus.

    Parameters
    ----------
    wanted : str
        ``sha256:`` and 64 hexadecimal digits.
    """
    opened = TextFolder(folder)
    if opened.digest != wanted:
        raise DiffscopeError(
            f"the text in {opened.path} has the digest {opened.digest}, and this study is of {wanted}; build that corpus, "
            "or allow any text"
        )
    return opened


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _text_files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.suffix.lower() in PLAIN and file.is_file())


def _mapped(place: Path) -> TextStream:
    return TextStream(np.load(place / "ids.npy", mmap_mode="r"), np.load(place / "cuts.npy", mmap_mode="r"))


def _learned(file: Path) -> str:
    """Return the SHA-256 of what a tokenizer learned: its vocabulary, its merges and the tokens added to it."""
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        added = [[token["id"], token["content"]] for token in saved["added_tokens"]]
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in saved["model"].get("merges", [])]
        learned = [saved["model"]["vocab"], merges, added]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CorruptFile(f"{file} is no tokenizer of the tokenizers library; {ANEW}") from None
    return hashlib.sha256(json.dumps(learned, sort_keys=True).encode()).hexdigest()


def _encodes(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest that differs for tokenizers that may encode a text differently."""
    if tokenizer.is_fast:
        return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    vocabulary = [type(tokenizer).__name__, tokenizer.name_or_path, sorted(tokenizer.get_vocab().items())]
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()
