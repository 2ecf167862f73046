"""The corpus is running English alone, split by document, and the same wherever it is built of the same packages."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffscope.errors import DiffscopeError
from diffscope.tasks.text_folder import TextFolder, sha256
from studies.subtraction import corpus, debian
from studies.subtraction.readers import is_running_english, running_english

ROOT = Path(__file__).parents[3]
PROSE = "The river that runs through the town is as wide as a lake when it has rained for a week."
OTHER_PROSE = "Nobody who lives in the hills above it has ever seen the sea, and few of them want to go there."
THIRD_PROSE = "It is said that the bridge was built by a man who had never before been out of his own house."
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")


@pytest.mark.parametrize(
    "paragraph, is_prose",
    [
        (PROSE, True),
        (PROSE.removesuffix("."), False),
        (PROSE.removesuffix(".") + ' ("if it rained").', True),
        ("The river is as wide as it is.", False),
        ("River town lake week rain house bridge hills sea man water boat stone road.", False),
        ("The river (x_1, y_2, z_3) = {0x1f, 0x2e, 0x3d}; // is as wide as it is when a[17] has rained for 1,234,567.", False),
        ("Der Fluss, der durch die Stadt fließt, ist so breit wie ein See, wenn es eine Woche geregnet hat.", False),
    ],
)
def test_what_is_running_english(paragraph, is_prose):
    assert is_running_english(paragraph) is is_prose


@pytest.mark.parametrize(
    "name, text, paragraphs",
    [
        (
            "a.html",
            f"<head><title>{PROSE}</title><style>p {{ }}</style></head><nav><p>{PROSE}</nav><p>{PROSE}<p>"
            f"{OTHER_PROSE.replace('sea', '<em>s</em>ea&#x200b;')}<pre>{PROSE}</pre>\n<li><a>{THIRD_PROSE[:30]}</a><br>"
            f"{THIRD_PROSE[30:]}<a class='headerlink'>¶</a>",
            [PROSE, OTHER_PROSE, THIRD_PROSE[:30] + " " + THIRD_PROSE[30:].strip()],
        ),
        ("left_open.html", f"<head><meta><body><pre><span>code</pre><p>{PROSE}", [PROSE]),
        (
            "a.page",
            f"<page xmlns='x'><info><link type='guide' xref='b'/></info><p>{PROSE}</p><p>See <link xref='b'/> if {PROSE}</p>"
            f"<p>{OTHER_PROSE[:50]}<link xref='b'>{OTHER_PROSE[50:]}</link></p></page>",
            [PROSE, OTHER_PROSE],
        ),
        (
            "a.txt",
            f"{PROSE[:40]}\r\n   {PROSE[40:]}\r\n\r\n - {OTHER_PROSE}\n - {THIRD_PROSE}\n",
            [PROSE, OTHER_PROSE, THIRD_PROSE],
        ),
        (
            "a.pod",
            f"{PROSE}\n\n=head1 {PROSE}\n\n{PROSE.replace('river', 'B<r>iver').replace('town', 'C<< L<< I<town>|perl >> >>')}\n\n"
            f"    {OTHER_PROSE}\n\n=begin html\n\n{OTHER_PROSE}\n\n=end html\n\n=item {THIRD_PROSE}\n\n=cut\n\n{OTHER_PROSE}\n",
            [PROSE, THIRD_PROSE],
        ),
    ],
)
def test_paragraphs_of_each_format(name, text, paragraphs):
    assert running_english(name, text.encode()) == paragraphs
    assert running_english(name + ".gz", gzip.compress(text.encode())) == paragraphs


def test_old_pages_are_read():
    assert running_english("a.html", f"<p>Café: {PROSE}".encode("cp1252")) == [f"Café: {PROSE}"]


def numbered(number):
    """A page of nine paragraphs whose letters no other page has."""
    letters = "".join(chr(ord("a") + int(digit)) for digit in f"{number:04d}")
    text = "<p>Of the towns of {} that we know, it is the one of {} which was once the oldest of them all.</p>"
    return "".join(text.format(letters, 3 * inside) for inside in "abcdefghi")


PAGES = {
    "manual": {f"usr/html/{number}.html": numbered(number) for number in range(60)}
    | {"usr/html/de/0.html": numbered(7777), "usr/html/zé.html": f"<p>{PROSE}<p>{PROSE}", "usr/code.txt": PROSE},
    "pages": {f"usr/html/{number}.html": numbered(number + 100) for number in range(30)} | {"usr/html/a.html": f"<p>{PROSE}"},
    "anarchism": {f"usr/html/{number}.html": numbered(number + 200) for number in range(5)},
}
PATTERNS = {name: r"/html/[^/]*\.html$" for name in PAGES}


def packed(folder, name, version="1:2.0-1"):
    """A package, as apt names the file."""
    root = folder / "root"
    for path, text in ({"DEBIAN/control": control(name, version)} | PAGES[name]).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    (root / "usr/html/link.html").symlink_to("0.html")
    file = folder / f"{name}_{version.replace(':', '%3a')}_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, file], check=True, capture_output=True)
    shutil.rmtree(root)
    return file


def control(name, version):
    return f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: a manual\n"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder of packages, and the record that names them."""
    folder = tmp_path_factory.mktemp("packages")
    files = {name: packed(folder, name) for name in PAGES}
    return folder, {"packages": {name: {"version": "1:2.0-1", "sha256": sha256(file)} for name, file in files.items()}}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(corpus, "PACKAGES", PATTERNS)
    monkeypatch.setattr(corpus, "HELD_OUT_BYTES", 9000)


def lines_of(folder, split):
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


@needs_dpkg
def test_a_corpus_is_split_by_document_and_described(packages, small, tmp_path):
    record = corpus.build(tmp_path, *packages)
    splits = {split: lines_of(tmp_path, split) for split in ("train", "held_out", "other_domain")}
    documents = {split: {line["document"] for line in lines} for split, lines in splits.items()}
    every = [document for split in documents.values() for document in split]
    assert len(every) == len(set(every)) == 96, "96 pages of three packages, each in one split"
    assert documents["other_domain"] == {f"anarchism/usr/html/{number}.html" for number in range(5)}
    size = sum(len(line["text"]) for line in splits["held_out"])
    assert 9000 <= size < 9000 + 1000 and size == record["splits"]["held_out"]["bytes"]
    assert {name.partition("/")[0] for name in documents["held_out"]} == {"manual", "pages"}, "not those that come first"
    texts = [line["text"] for lines in splits.values() for line in lines]
    assert texts.count(PROSE) == 1 and record["near_duplicates"] == {"paragraphs": 2, "bytes": 2 * len(PROSE)}
    assert [package["near_duplicates"] for package in record["packages"].values()] == [1, 1, 0]
    opened = TextFolder(tmp_path)
    assert opened.record == record and opened.digest == record["digest"]
    tokenizer = opened.tokenizer()
    for split, sizes in record["splits"].items():
        assert sizes["tokens"] == len(opened.filler(split, tokenizer).ids) and sizes["paragraphs"] == len(splits[split])
    for what in ("documents", "paragraphs", "bytes", "tokens"):
        assert sum(sizes[what] for sizes in record["packages"].values()) == sum(size[what] for size in record["splits"].values())
    shown = "\n".join(corpus.show(tmp_path, seed=0))
    assert record["digest"] in shown and shown.count("  Of the towns of") == 10


@needs_dpkg
def test_it_is_the_same_in_every_process_and_language(packages, small, tmp_path):
    folder, record = packages
    wanted = corpus.build(tmp_path / "wanted", folder, record)
    script = (
        "import sys, json; from pathlib import Path; from studies.subtraction import corpus\n"
        "corpus.PACKAGES, corpus.HELD_OUT_BYTES, record = json.loads(sys.argv[1])\n"
        "corpus.build(Path(sys.argv[2]), Path(sys.argv[3]), record)"
    )
    environment = {"PYTHONHASHSEED": "2", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = [json.dumps([PATTERNS, 9000, record]), tmp_path / "again", folder]
    subprocess.run([sys.executable, "-c", script, *arguments], cwd=ROOT, env=os.environ | environment, check=True)
    assert json.loads((tmp_path / "again" / "corpus.json").read_text()) == wanted
    assert (tmp_path / "again" / "corpus.json").read_bytes() == (tmp_path / "wanted" / "corpus.json").read_bytes()


@needs_dpkg
def test_building_again_replaces_a_corpus_whole(packages, small, monkeypatch, tmp_path):
    """One that was interrupted is not taken for the old one, nor for a new one."""
    wanted = corpus.build(tmp_path, *packages)
    (tmp_path / "tokenizer" / "of_an_older_version.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "write_json", lambda *arguments, **others: sys.exit("killed"))
        with pytest.raises(SystemExit):
            corpus.build(tmp_path, *packages)
    assert not (tmp_path / "corpus.json").exists()
    assert corpus.build(tmp_path, *packages) == wanted
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "corpus.json", "held_out.jsonl", "other_domain.jsonl", "tokenizer", "train.jsonl",
    ]  # fmt: skip
    assert TextFolder(tmp_path).record == wanted and not (tmp_path / "tokenizer" / "of_an_older_version.json").exists()


@needs_dpkg
def test_a_damaged_package_is_refused(packages, tmp_path):
    folder, _ = packages
    (file,) = folder.glob("manual_*")
    (tmp_path / file.name).write_bytes(file.read_bytes()[:-20_000])
    cut = debian.Fetched("manual", "2.0", "", tmp_path / file.name)
    with pytest.raises(DiffscopeError, match="cannot unpack"):
        list(debian.members(cut, "html"))


@pytest.fixture
def apt(monkeypatch, tmp_path):
    """An apt that has one version of one package, and writes down what it downloads."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "manual.deb").write_text("content")
    digest = sha256(tmp_path / "manual.deb")
    entry = f"Package: manual\\nVersion: 1:3.0\\nSHA256: {digest}\\n"
    show = f'case "$3" in manual|manual=1:3.0) printf "{entry}";; esac'
    download = f'echo "$3" >> {tmp_path}/log; [ "$3" = manual=1:3.0 ] && cp {tmp_path}/manual.deb manual_1%3a3.0_all.deb'
    for name, script in (("apt-cache", show), ("apt-get", download)):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def test_a_package_is_downloaded_once_and_proven(apt):
    folder = apt / "packages"
    recorded = {"version": "1:2.0", "sha256": "00"}
    first = debian.fetch("manual", recorded, folder)
    assert (first.version, first.sha256) == ("1:3.0", sha256(first.file)), "the recorded version is no longer to be had"
    assert debian.fetch("manual", None, folder) == first and (apt / "log").read_text() == "manual=1:3.0\n"
    first.file.write_text("damaged")
    assert sha256(debian.fetch("manual", None, folder).file) == first.sha256, "a damaged one is downloaded anew"
    (apt / "manual.deb").write_text("not what the index says")
    first.file.unlink()
    with pytest.raises(DiffscopeError, match="is not what its index says"):
        debian.fetch("manual", None, folder)
    assert not list(folder.iterdir())
    with pytest.raises(DiffscopeError, match="apt has no package pages; run `apt-get update` first"):
        debian.fetch("pages", recorded, folder)


def test_a_package_of_the_recorded_version_needs_no_apt(apt, monkeypatch):
    held = debian.fetch("manual", None, apt / "packages")
    monkeypatch.setenv("PATH", "")
    assert debian.fetch("manual", {"version": "1:3.0", "sha256": held.sha256}, apt / "packages") == held
    with pytest.raises(DiffscopeError, match="there is no apt-cache"):
        debian.fetch("manual", {"version": "1:2.0", "sha256": "00"}, apt / "packages")


def test_another_digest_is_explained_by_versions():
    def record(digest, **versions):
        return {"digest": digest, "packages": {name: {"version": version} for name, version in versions.items()}}

    recorded = record("sha256:1", manual="1", pages="1")
    assert corpus.compare(record("sha256:1", manual="1", pages="1"), recorded) == ["sha256:1, as recorded"]
    assert corpus.compare(record("sha256:2", manual="1", pages="2"), recorded) == [
        "sha256:2, which is not the recorded sha256:1",
        "  pages is 2, and 1 is recorded",
    ]
    assert "reading of them" in corpus.compare(record("sha256:2", manual="1", pages="1"), recorded)[1]


def test_what_goes_wrong_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="^error: .* has no train.jsonl"):
        corpus.main(["show", str(tmp_path)])


def test_the_recorded_corpus_is_the_one_that_this_script_builds():
    recorded = json.loads(corpus.RECORDED.read_text())
    assert list(recorded["packages"]) == list(corpus.PACKAGES)
    assert recorded["splits"]["other_domain"]["documents"] == recorded["packages"][corpus.OTHER]["documents"]
