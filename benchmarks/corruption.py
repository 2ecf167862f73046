"""Damage saved files at random: each opens as it was, or is refused in one line.

    python -m benchmarks.corruption --count 2000 --seed 0

Every kind of file is damaged `--count` times and opened. Of what opens, all content is compared with what was saved. Files are
damaged with their digests, and again without, as models of other programs are. The exit status says whether any file with a
digest opened with another content, or anything ended in a traceback.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import resource
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import torch
import xarray as xr
from transformers.utils.logging import disable_progress_bar

import diffscope
from benchmarks import results
from benchmarks.meter import memory
from benchmarks.results import Section, table
from diffscope.attention.stored import to_tensors
from diffscope.errors import DiffscopeError, MissingChecksum
from diffscope.hypotheses.study import Study
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.storage.checksum import END, KEY, MARK, SUMS, write_sums
from diffscope.storage.statistics import FORMATS, save_statistics
from diffscope.tables.table import Table
from tests.study_data import study as planted_study

PATIENCE = 60  # seconds in which a file has to open
MEMORY = 8 * 2**30  # bytes of address space beyond what is taken at the start
ENDS = 400  # bytes at both ends of a file, where formats have their headers and footers
OUTCOMES = ("unchanged", "refused", "warned", "silent", "traceback")

# Damages of the bytes of a file.


def flip_bits(data: bytearray, rng: random.Random) -> bytearray:
    """Flip one to eight bits."""
    for at in (rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 2, 8)))):
        data[at] ^= 1 << rng.randrange(8)
    return data


def truncate(data: bytearray, rng: random.Random) -> bytearray:
    """Cut the end off."""
    return data[: rng.choice((0, rng.randrange(len(data)), len(data) - rng.randint(1, min(9, len(data)))))]


def zero(data: bytearray, rng: random.Random) -> bytearray:
    """Set a piece to zero."""
    at, size = _piece(data, rng)
    data[at : at + size] = bytes(size)
    return data


def swap(data: bytearray, rng: random.Random) -> bytearray:
    """Exchange two pieces."""
    size = min(_piece(data, rng)[1], len(data) // 2)
    first = rng.randrange(len(data) - 2 * size + 1)
    second = rng.randrange(first + size, len(data) - size + 1)
    data[first : first + size], data[second : second + size] = data[second : second + size], data[first : first + size]
    return data


def change_header(data: bytearray, rng: random.Random) -> bytearray:
    """Change bytes at both ends."""
    ends = min(ENDS, len(data))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(ends)
        data[rng.choice((at, len(data) - 1 - at))] = rng.choice((0, 255, ord("9"), ord('"'), rng.randrange(256)))
    return data


def delete(data: bytearray, rng: random.Random) -> bytearray:
    """Take a piece out."""
    at, size = _piece(data, rng)
    del data[at : at + size]
    return data


def insert(data: bytearray, rng: random.Random) -> bytearray:
    """Put a piece in."""
    at, size = _piece(data, rng)
    data[at:at] = rng.choice((rng.randbytes(size), data[at : at + size], bytes(size)))
    return data


def _piece(data: bytearray, rng: random.Random) -> tuple[int, int]:
    """Draw where a piece of a file begins and how long it is, short ones as often as long ones."""
    size = min(len(data), int(2 ** rng.uniform(0, 12)))
    return rng.randrange(len(data) - size + 1), size


DAMAGES: dict[str, Callable[[bytearray, random.Random], bytearray]] = {
    "bits flipped": flip_bits,
    "truncated": truncate,
    "a piece zeroed": zero,
    "pieces swapped": swap,
    "header bytes": change_header,
    "a piece deleted": delete,
    "a piece inserted": insert,
}


# The files.


def keep_all(root: Path) -> dict[str, Path]:
    """Write a file or folder of every kind; return them by name."""
    scope = diffscope.load("mini-diff")
    capture = scope.capture("The magic number: Rome 4217. The magic number: Rome", spans={"answer": "4217"})
    capture.save(root / "a.dscope")
    kept = {"capture": root / "a.dscope"}
    for suffix in FORMATS:
        save_statistics(capture.measure(["entropy", "gini", "span_mass"]), root / f"statistics{suffix}")
        kept[f"statistics {suffix}"] = root / f"statistics{suffix}"
    kept["study"] = planted_study().save(root / "study")
    torch.manual_seed(0)
    config = DiffConfig(
        attention="v1",
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=scope.model.config.vocab_size,
    )
    DiffForCausalLM(config).save_pretrained(root / "model")
    scope.tokenizer.save_pretrained(root / "model")
    write_sums(root / "model", [path.name for path in (root / "model").iterdir()])
    kept["model"] = root / "model"
    return kept


def without_digests(kept: dict[str, Path]) -> None:
    """Take the digests out of saved files, as if another program had written them."""
    for path in _files(kept):
        if path.name == SUMS:
            path.unlink()
        else:
            data = path.read_bytes()
            for part in (KEY.encode(), MARK, END):
                data = data.replace(part, b"-" * len(part))  # as long, so that all else stays in its place
            path.write_bytes(data)


def _files(kept: dict[str, Path]) -> list[Path]:
    return [file for path in kept.values() for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]


def content(path: Path) -> str:
    """Return a digest of the whole content of a saved file."""
    opened = diffscope.load(path) if path.name == "model" else diffscope.open(path)
    if isinstance(opened, Study):
        return _digest({}, [opened.facts, opened.boards, opened.survival])
    if isinstance(opened, xr.Dataset):
        labels = [opened.to_dict(data=False), {name: str(x.values.tolist()) for name, x in opened.variables.items()}]
        return _digest({}, labels)
    if isinstance(opened, diffscope.Scope):
        words = opened.tokenizer and (opened.tokenizer.backend_tokenizer.to_str(), opened.tokenizer.special_tokens_map)
        settings = opened.model.generation_config.to_dict()
        return _digest(opened.model.state_dict(), [opened.model.config.to_dict(), settings, words])
    layers = [to_tensors(layer) for layer in opened.layers]
    tensors = {f"{number}.{name}": tensor for number, (held, _) in enumerate(layers) for name, tensor in held.items()}
    tensors["outliers"] = torch.from_numpy(opened.layer_output_outliers)
    plain = [[asdict(prompt) for prompt in opened.prompts], [record for _, record in layers], opened.facts, opened.next]
    return _digest(tensors, [plain, opened.fidelity.to_dict()])


def _digest(tensors: dict[str, torch.Tensor], plain: object) -> str:
    digest = hashlib.sha256(json.dumps(plain, default=repr, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


# Opening them.


def outcome(path: Path, before: str) -> str:
    """Open a damaged file; return one of ``OUTCOMES``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            same = content(path) == before
        except DiffscopeError as error:
            return "traceback" if "\n" in str(error) else "refused"
        except BaseException as error:  # a panic of Rust, and running out of time, are no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            sys.stderr.write(f"{path.name}: {type(error).__name__}: {str(error)[:300]}\n")
            return "traceback"
    if same:
        return "unchanged"
    return "warned" if any(isinstance(warning.message, MissingChecksum) for warning in caught) else "silent"


def damage(kept: dict[str, Path], count: int, rng: random.Random) -> Counter[tuple[str, str, str]]:
    """Damage files of every kind; count each (kind, damage, outcome)."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for kind, path in kept.items():
        before = content(path)
        files = _files({kind: path})
        for number in range(count):
            file = rng.choice(files)
            name = list(DAMAGES)[number % len(DAMAGES)]
            data = file.read_bytes()
            file.write_bytes(DAMAGES[name](bytearray(data), rng))
            if file.read_bytes() != data:
                signal.alarm(PATIENCE)
                counts[kind, name, outcome(path, before)] += 1
                signal.alarm(0)
            file.write_bytes(data)
        assert content(path) == before
    return counts


def shown(caption: str, counts: Counter[tuple[str, str, str]]) -> Table:
    """Return a table of the outcomes of every kind and damage that occurred."""
    rows = []
    for kind in dict.fromkeys(kind for kind, _, _ in counts):
        rows.append([kind, *(", ".join(f"{n} {end}" for end in OUTCOMES if (n := counts[kind, name, end])) for name in DAMAGES)])
    return table(caption, ("kind", *DAMAGES), rows)


def out_of_time(number: int, frame: FrameType | None) -> None:
    """Raise: a file took too long to open."""
    raise TimeoutError(f"not open after {PATIENCE} seconds")


CAPTIONS = (
    "With digests. “Refused” is one line that says what to do; “unchanged” opens as it was. Damages that change nothing "
    "are not counted.",
    "Without digests, as other programs write models: “warned” is another content, opened with the warning that the file "
    "carries no digest, “silent” another without a word. Nobody can know of a model without digests that a weight is "
    "another number.",
)


def main() -> int:
    """Damage every kind of file, with digests and without."""
    parser = results.parser(__doc__)
    parser.add_argument("--count", type=int, default=2000, help="damages of each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    disable_progress_bar()
    signal.signal(signal.SIGALRM, out_of_time)
    taken = int(memory("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    rng, count = random.Random(options.seed), 21 if options.quick else options.count
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingChecksum)
        kept = keep_all(Path(folder))
        counts = [damage(kept, count, rng)]
        del kept["study"]  # diffscope alone writes studies, and refuses any without a digest
        without_digests(kept)
        counts.append(damage(kept, count, rng))
    tables = [shown(caption, of) for caption, of in zip(CAPTIONS, counts)]
    command = f"python -m benchmarks.corruption --count {count} --seed {options.seed}"
    words = "mini-diff as it is bundled, and a random model of two layers"
    text = f"A file or folder of every kind is damaged {count:,} times in seven ways and opened."
    results.keep("corruption", [Section("files", "Damaged files", command, words, tables, text)], options)
    return any(end == "traceback" or (end == "silent" and of is counts[0]) for of in counts for *_, end in of)


if __name__ == "__main__":
    sys.exit(main())
