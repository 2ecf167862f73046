"""Try every causal class of the installed transformers at a tiny size: it is read, and its maps are its own, or it is refused."""

from __future__ import annotations

import gc
import re
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

import diffscope
from benchmarks.results import table
from diffscope.errors import first_line
from diffscope.families.foreign import encoder_of
from diffscope.tables.table import Table
from tests import tiny
from tests.shrunken import VOCABULARY, shrunken

TOKENS = 24  # beyond the windows of 7
ENOUGH = 1e-5
OTHERWISE = 0.1  # what no rounding in float32 explains
IDS = torch.randint(10, VOCABULARY - 40, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
DECODED = 9  # tokens of a decoder beside its encoder
LEGEND = (
    "“read”: the model was captured, and each map differs from the model's own output_attentions in eager attention by less "
    f"than {ENOUGH:.0e} in float32. A class whose maps differ more would stand here as WRONG, as would one that is read in "
    "bfloat16 and refused in float32. “not compared”: captured and proved, but the class returns no maps to compare with. "
    "“refused”: with the message in the last column. “eager / SDPA” has two differences, each the largest over maps and "
    "layers: between captured maps and the model's own in eager attention, and between D captured in SDPA and D captured "
    "in eager attention."
)


class Outcome(NamedTuple):
    """What became of one class in one precision."""

    kind: str  # equal, not compared, WRONG, refused, BUG, not tried
    words: str = ""
    eager: float = float("nan")  # largest difference from the maps that the model gives
    sdpa: float = float("nan")  # largest difference of SDPA's capture from that of eager attention


def classes(mapping) -> Iterator[type[PreTrainedModel]]:
    """Return the classes of one of transformers' mappings, each once."""
    seen = set()
    for config in [*mapping]:
        listed = mapping[config]
        for model_class in listed if isinstance(listed, tuple) else (listed,):
            if model_class not in seen:
                seen.add(model_class)
                yield model_class


def inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return what a model is given: of an encoder with its decoder a text for each."""
    given = {"input_ids": torch.tensor([IDS]), "attention_mask": torch.ones(1, TOKENS).long()}
    return given | {"decoder_input_ids": given["input_ids"][:, :DECODED]} if encoder_of(model) is not None else given


def own_maps(model: PreTrainedModel, capture: diffscope.Capture) -> list[torch.Tensor] | None:
    """Return the maps that a model gives of each layer of a capture, (map, query, key); None if it gives none or not by layer."""
    layers = capture.layer_numbers
    try:
        with torch.no_grad():
            out = model(**inputs(model), output_attentions=True, use_cache=False)
    except Exception:  # there are many ways of not giving maps
        return None
    if encoder_of(model) is not None:
        names = {"encoder": "encoder_attentions", "self": "decoder_attentions", "cross": "cross_attentions"}
        given = {kind: [*(getattr(out, name, None) or [])] for kind, name in names.items()}
        if any(len(given[kind]) != capture.kinds.count(kind) for kind in names):
            return None
        return [given[kind].pop(0)[0].float() for kind in capture.kinds]
    maps = [each for each in getattr(out, "attentions", None) or [] if isinstance(each, torch.Tensor)]
    if len(maps) > max(layers):
        maps = [maps[layer] for layer in layers]
    fits = len(maps) == len(layers) and all(each.dim() == 4 and each.shape[2:] == (TOKENS, TOKENS) for each in maps)
    return [each[0].float() for each in maps] if fits else None


def largest_difference(capture: diffscope.Capture, maps: list[torch.Tensor], without_sinks: bool = False) -> float | None:
    """Return how far A1 and A2 are from the maps of each layer; None if a layer has another number of maps.

    With `without_sinks`, of what they are without the share of a sink logit.
    """
    worst = torch.zeros(())
    for layer, of_layer in zip(capture.layers, maps, strict=True):
        rows = layer.rows()
        for seen, chosen in ((rows.a1, layer.pairing.a1), (rows.a2, layer.pairing.a2)):
            if seen is None:
                continue
            if int(chosen.max()) >= len(of_layer):
                return None
            seen = seen / seen.sum(-1, keepdim=True) if without_sinks else seen
            worst = torch.maximum(worst, (seen - of_layer[chosen]).abs().max())  # a NaN stays a NaN
    return float(worst)


def logits(model: PreTrainedModel, implementation: str) -> torch.Tensor | None:
    """Return the logits of the bare model in an attention implementation; None if it does not run in it."""
    try:
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            return model(**inputs(model), use_cache=False).logits
    except Exception:  # a class may ask for anything
        return None


def outcome(model_class: type[PreTrainedModel], dtype: torch.dtype) -> Outcome:
    """Capture a tiny model of a class in both attention implementations."""
    try:
        model = tiny.awake(shrunken(model_class)).to(dtype)
    except Exception as error:
        return Outcome("not tried", f"{type(error).__name__}: {first_line(error)[:120]}")
    given = {name: out for name in ("eager", "sdpa") if (out := logits(model, name)) is not None}
    if not given:
        return Outcome("not tried", "does not run on token ids alone")
    captures: dict[str, diffscope.Capture] = {}
    refusals: dict[str, str] = {}
    for name in given:
        model.set_attn_implementation(name)
        try:
            given_ids = {name: ids for name, ids in inputs(model).items() if name != "attention_mask"}
            captures[name] = diffscope.load(model).capture(given_ids if len(given_ids) > 1 else IDS)
        except diffscope.DiffscopeError as refusal:
            refusals[name] = str(refusal)
        except Exception as error:
            return Outcome("BUG", repr(error)[:300])
    if not captures:
        return Outcome("refused", next(iter(refusals.values())))
    result = compared(model, captures, given, wrong_above=ENOUGH if dtype == torch.float32 else float("inf"))
    words = [result.words, *(f"refused in {name}: {words}" for name, words in refusals.items())]
    return result._replace(words="; ".join(filter(None, words)))


def compared(model: PreTrainedModel, captures: dict, given: dict, wrong_above: float) -> Outcome:
    """Compare captures in one or both implementations with the model's own maps and with each other."""
    first = next(iter(captures.values()))
    words = [first.facts["warnings"]] if "warnings" in first.facts else []
    sdpa = float("nan")
    if len(captures) > 1:
        pairs = zip(captures["eager"].layers, captures["sdpa"].layers)
        sdpa = max(float((a.rows().d - b.rows().d).abs().max()) for a, b in pairs)
        if sdpa > OTHERWISE and (given["eager"] - given["sdpa"]).abs().max() > OTHERWISE:
            words.append("the model itself attends otherwise in SDPA than in eager attention")
    maps = None
    if "eager" in captures:
        model.set_attn_implementation("eager")
        maps = own_maps(model, first)
    difference = None if maps is None else largest_difference(captures["eager"], maps)
    if difference is None:
        return Outcome("not compared", "; ".join(words), sdpa=sdpa)
    if not difference < wrong_above and any(layer.sink_logit is not None for layer in first.layers):
        difference = largest_difference(captures["eager"], maps, without_sinks=True)
        words.append("the maps that it gives leave out the sink logits")
    return Outcome("equal" if difference < wrong_above else "WRONG", "; ".join(words), difference, sdpa)


def shortened(words: str, name: str) -> str:
    """Return a refusal without what differs from class to class."""
    words = re.sub(r"^layer \d+: | \((in a float32 run of the layer: )?error [^)]*\)| \(families: [^)]*\)", "", words)
    words = re.sub(r"[;,] ((or )?make it known|this version of) [^;]*", "", words)
    return words.removeprefix(f"{name} ")


def cells(result: Outcome) -> tuple[str, str]:
    """Return the word for an outcome, and its differences."""
    if result.kind in ("refused", "BUG", "not tried"):
        return result.kind, "–"
    word = {"equal": "read", "not compared": "read, not compared", "WRONG": "WRONG"}[result.kind]
    return word, f"{result.eager:.0e} / {result.sdpa:.0e}".replace("nan", "–")


def tables(options: Namespace) -> list[Table]:
    """Try every class of the mappings."""
    mappings = {
        "Causal language models": MODEL_FOR_CAUSAL_LM_MAPPING,
        "Models of images and text, on text alone": MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        "Encoders with a decoder": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    }
    return [table_of(title, islice(classes(mapping), 2 if options.quick else None)) for title, mapping in mappings.items()]


def table_of(title: str, of: Iterable[type[PreTrainedModel]]) -> Table:
    """Try some classes; what no tiny model could be made of is counted, and named in the caption."""
    counted: Counter = Counter()
    rows, left_out = [], []
    for model_class in of:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            full, half = (outcome(model_class, dtype) for dtype in (torch.float32, torch.bfloat16))
        gc.collect()
        counted[full.kind] += 1
        if full.kind == "not tried":
            left_out.append(f"{model_class.__name__} ({full.words})")
            continue
        words = shortened(full.words, model_class.__name__)
        if half.kind in ("refused", "BUG") and shortened(half.words, "") != shortened(full.words, ""):
            words += f"{'; ' if words else ''}bfloat16: {shortened(half.words, model_class.__name__)}"
        in_half = cells(half)[0]
        if full.kind == "refused" and in_half.startswith("read"):
            in_half = "WRONG"  # rounding hides from the proof what float32 shows
        rows.append([model_class.__name__, *cells(full), in_half, words])
    count = ", ".join(f"{count} {kind}" for kind, count in counted.most_common())
    notes = (
        [f"Not tried, because no tiny model of it could be made or run on text alone: {'; '.join(left_out)}."] if left_out else []
    )
    caption = f"{title} of transformers {transformers.__version__}, a prompt of {TOKENS} tokens. In all {count}. {LEGEND}"
    made = table(caption, ("class", "float32", "eager / SDPA", "bfloat16", "words"), rows)
    return replace(made, notes=tuple(notes))
