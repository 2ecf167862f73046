"""A folder of text is encoded once, is drawn from as its texts are, and is refused if it is not what its record says."""

import json

import numpy as np
import pytest

from diffscope.errors import CorruptFile, DiffscopeError, PromptError
from diffscope.tasks import text, text_folder
from diffscope.tasks.text import TextStream
from diffscope.tasks.text_folder import TextFolder, require_digest, sha256
from diffscope.tasks.tokenizer import train_tokenizer

TRAIN = [f"The river {name} carries ships to the sea, and 42 of them are unknown." for name in ("Lena", "Oder", "Elbe")]
HELD_OUT = ["A lake has no ships, but it has boats.", "Its boats are small."]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TRAIN, 300)


@pytest.fixture
def folder(tmp_path):
    for split, texts in (("train", TRAIN), ("held_out", HELD_OUT)):
        lines = [json.dumps({"document": "a", "text": text}) + "\n" for text in texts]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def encodings(monkeypatch):
    """How often something was encoded."""
    calls = []
    encode = text.encode_continuation
    monkeypatch.setattr(text, "encode_continuation", lambda *arguments: calls.append(1) or encode(*arguments))
    return calls


def record(folder, **other):
    opened = TextFolder(folder)
    files = {name: sha256(folder / name) for name in ("train.jsonl", "held_out.jsonl")}
    (folder / "corpus.json").write_text(json.dumps({"digest": opened.digest, "files": files, **other}))
    return opened.digest


@pytest.mark.parametrize("at_once", [1, 3, 4096])
def test_its_tokens_are_those_of_its_texts_from_a_file(folder, tokenizer, monkeypatch, at_once):
    monkeypatch.setattr(text, "AT_ONCE", at_once)
    filler, wanted = TextFolder(folder).filler("train", tokenizer), TextStream.of(TRAIN, tokenizer)
    assert isinstance(filler.ids, np.memmap) and filler.ids.dtype == np.uint16
    np.testing.assert_array_equal(filler.ids, wanted.ids)
    np.testing.assert_array_equal(filler.cuts, wanted.cuts)
    drawn, cuts = filler.sample(12, np.random.default_rng(3))
    same, same_cuts = wanted.sample(12, np.random.default_rng(3))
    assert drawn.dtype == np.int64 and cuts.dtype == bool and not isinstance(drawn, np.memmap)
    assert drawn.tolist() == same.tolist() and cuts.tolist() == same_cuts.tolist()


def test_it_is_encoded_once(folder, tokenizer, encodings):
    first = TextFolder(folder).filler("train", tokenizer)
    again = TextFolder(folder).filler("train", tokenizer)
    assert len(encodings) == 1 and again.ids.tolist() == first.ids.tolist()
    assert not list(folder.glob("tokens/.*")), "what was unfinished is gone"


def test_another_text_or_tokenizer_is_encoded_anew(folder, tokenizer, encodings):
    TextFolder(folder).filler("train", tokenizer)
    more = train_tokenizer(TRAIN, 300)
    more.add_tokens([" ships"])
    assert TextFolder(folder).filler("train", more).ids.max() == len(more) - 1
    with open(folder / "train.jsonl", "a") as file:
        file.write('{"text": "One more river."}\n')
    filler = TextFolder(folder).filler("train", tokenizer)
    assert len(encodings) == 3 and filler.ids.tolist() == TextStream.of([*TRAIN, "One more river."], tokenizer).ids.tolist()


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [lambda data: data[:-1], flipped], ids=["cut", "flipped"])
@pytest.mark.parametrize("name", ["ids.npy", "cuts.npy", "SHA256SUMS"])
def test_damaged_tokens_are_made_anew(folder, tokenizer, name, damage):
    wanted = TextFolder(folder).filler("train", tokenizer).ids.tolist()
    (file,) = folder.glob(f"tokens/train-*/{name}")
    file.write_bytes(damage(file.read_bytes()))
    assert TextFolder(folder).filler("train", tokenizer).ids.tolist() == wanted


def test_two_that_encode_at_once_both_have_the_tokens(folder, tokenizer, monkeypatch):
    """The second finds the other's work in the place of its own."""
    write_sums = text_folder.write_sums
    inner = []

    def meanwhile(made, names):
        write_sums(made, names)
        if not inner:
            inner.append(None)
            inner[0] = TextFolder(folder).filler("train", tokenizer)

    monkeypatch.setattr(text_folder, "write_sums", meanwhile)
    outer = TextFolder(folder).filler("train", tokenizer)
    assert outer.ids.tolist() == inner[0].ids.tolist() == TextStream.of(TRAIN, tokenizer).ids.tolist()


def test_two_that_train_its_tokenizer_at_once_both_have_it(folder, monkeypatch):
    trained = text_folder.train_tokenizer

    def meanwhile(*arguments, **options):
        monkeypatch.setattr(text_folder, "train_tokenizer", trained)
        TextFolder(folder).tokenizer()
        return trained(*arguments, **options)

    monkeypatch.setattr(text_folder, "train_tokenizer", meanwhile)
    assert TextFolder(folder).tokenizer().get_vocab() == TextFolder(folder).tokenizer().get_vocab()


def test_a_folder_of_plain_text_has_its_own_tokenizer_trained(tmp_path):
    for split, texts in (("train", TRAIN), ("held_out", HELD_OUT)):
        (tmp_path / split / "in").mkdir(parents=True)
        (tmp_path / split / "in" / "a.txt").write_text("\n\n".join(texts))
    opened = TextFolder(tmp_path)
    bare = opened.digest
    tokenizer = opened.tokenizer()
    assert opened.splits == ("train", "held_out") and opened.texts("train") == tuple(TRAIN)
    assert opened.digest != bare and opened.digest == TextFolder(tmp_path).digest
    assert len(tokenizer(" unknown Paris 42", add_special_tokens=False)["input_ids"]) == 3
    assert opened.tokenizer().get_vocab() == tokenizer.get_vocab()
    assert opened.filler("held_out", opened.tokenizer()).ids.tolist() == TextStream.of(HELD_OUT, tokenizer).ids.tolist()
    (tmp_path / "train" / "in" / "a.txt").rename(tmp_path / "train" / "in" / "b.txt")
    assert opened.digest != TextFolder(tmp_path).digest, "the order of files is part of a text"


def test_what_is_no_such_folder_is_refused(folder, tokenizer):
    with pytest.raises(PromptError, match="no text 'other_domain'; it has train, held_out"):
        TextFolder(folder).filler("other_domain", tokenizer)
    (folder / "held_out.jsonl").unlink()
    with pytest.raises(PromptError, match="no held_out.jsonl and no folder held_out"):
        TextFolder(folder)


def test_a_file_that_is_not_what_the_record_says_is_refused(folder):
    record(folder)
    TextFolder(folder)
    with open(folder / "held_out.jsonl", "a") as file:
        file.write('{"text": "Another."}\n')
    with pytest.raises(CorruptFile, match="held_out.jsonl is not the file that corpus.json names"):
        TextFolder(folder)
    (folder / "held_out.jsonl").rename(folder / "elsewhere")
    (folder / "held_out").mkdir()
    (folder / "held_out" / "a.txt").write_text("Text.")
    with pytest.raises(CorruptFile, match="lacks held_out.jsonl"):
        TextFolder(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"digest": "sha256:0"}', '{"digest": "sha256:0", "files": 3}'])
def test_a_broken_record_is_refused(folder, content):
    (folder / "corpus.json").write_text(content)
    with pytest.raises(CorruptFile, match="is no record of a corpus"):
        TextFolder(folder)


def test_a_study_takes_its_own_corpus_only(folder):
    digest = record(folder)
    assert require_digest(folder, digest).record["digest"] == digest
    with pytest.raises(DiffscopeError, match=f"has the digest {digest}, and this study is of sha256:00"):
        require_digest(folder, "sha256:00")
    (folder / "corpus.json").write_text(json.dumps({"digest": "sha256:00", "files": {}}))
    with pytest.raises(CorruptFile, match="its corpus.json says sha256:00"):
        require_digest(folder, "sha256:00")


def test_a_folder_with_a_record_is_given_no_tokenizer(folder):
    """It would not be the folder of its record any more, and be refused when it is opened again."""
    record(folder)
    with pytest.raises(DiffscopeError, match="has a corpus.json and no tokenizer"):
        TextFolder(folder).tokenizer()
    TextFolder(folder)


def test_the_digest_is_of_what_the_tokenizer_learned(folder):
    """Not of what versions of the libraries write beside it."""
    opened = TextFolder(folder)
    opened.tokenizer()
    digest, file = opened.digest, folder / "tokenizer" / "tokenizer.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"a_new_field": None}))
    assert TextFolder(folder).digest == digest
    saved["model"]["merges"].reverse()
    file.write_text(json.dumps(saved))
    assert TextFolder(folder).digest != digest
