"""Measure where the answering query looks, and whether it answers, by length of the prompt and depth of the answer in it.

This is Table 3 of "Differential Transformer" (Ye et al., 2024) for any model with a tokenizer, with the length as second axis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import xarray as xr

from diffscope.edits import Edit
from diffscope.errors import DiffscopeError, InsufficientMemory, PromptError, UnsupportedModel, check_several
from diffscope.numbers import counted, decibels, decimal, listed, percent, two_figures
from diffscope.readings import signs
from diffscope.readings.captures import visible_keys
from diffscope.readings.reading import Reading, described, with_error
from diffscope.scope import Scope
from diffscope.scope.answers import score_answers
from diffscope.stats.averaging import averaged, mean_over_prompts, standard_error
from diffscope.stats.intervals import of_share
from diffscope.stats.negative_mass import FORMULA, NEEDED, negative_mass
from diffscope.stats.uniform import uniform_share
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.sampling import DEPTHS
from diffscope.tasks.training_sentence import template_of

LENGTHS = (128, 256, 512)
ROOM = 64  # positions for what is answered after the question
SPANS = ("answer", "needles", "query")
CELL = ("length", "depth")
ALIKE = ("prompts", "distractors", "seed", "template")  # of readings that are compared

Progress = Callable[[int, int], object]


def usual_lengths(scope: Scope) -> tuple[int, ...]:
    """Return those of 128, 256 and 512 tokens that a model has positions for, or the longest that it has."""
    if scope.max_length is None:
        return LENGTHS
    longest = scope.max_length - ROOM
    return tuple(length for length in LENGTHS if length <= longest) or (max(longest, 1),)


def depths(
    scope: Scope,
    lengths: Sequence[int] | None = None,
    *,
    prompts: int = 5,
    distractors: int = 3,
    seed: int = 20_000,
    task: Retrieval | None = None,
    edits: Sequence[Edit] = (),
    progress: Progress | None = None,
) -> Reading:
    """Measure what the last query of retrieval prompts gives to the answer and to irrelevant tokens, and score the answers.

    The prompts ask for the number of one city among others, in real text. Prompt i has the same cities and numbers at every
    length and depth. One prompt runs at a time, and nobody else waits longer for the model than that.

    Parameters
    ----------
    scope : Scope
        Of a model that predicts tokens, with its tokenizer.
    lengths : sequence of int, optional
        Tokens of the prompts; by default :func:`usual_lengths`.
    prompts : int
        For each length and each depth: 0, 25, 50, 75 and 100 % of the text before the question.
    distractors : int
        Cities that are not asked for.
    seed : int
    task : Retrieval, optional
        By default that of the model's tokenizer, in the sentence that it was trained on where its folder says so, over
        held-out documentation strings of Python's standard library.
    edits : sequence of Edit
        Under which the model runs.
    progress : callable, optional
        Called with (prompts done, prompts in all) before the first prompt and after each; what it raises ends the reading.

    Returns
    -------
    Reading
        ``estimates``: ``mass`` (length, depth, map, span, normalisation), the mean over heads, then layers, then prompts, its
        standard error over prompts ``mass_se``, and ``mass_of_prompt``; ``by_head``, the mean over prompts alone; ``negative``,
        the part of a row's Σ|x| that negative weights on a span have, and ``negative_by_head``; ``uniform`` (length, depth,
        span), what uniform attention gives, undefined where a capture of the prompt does not fit into memory; ``exact`` (length,
        depth), the share of exact answers, with the ends of its 95 % interval (Wilson), ``exact_low`` and ``exact_high``;
        ``log_odds`` and ``log_odds_se``, of the answer against all distractors in nats, and ``log_odds_of_prompt``. NaN for what
        standard attention lacks, and for errors of one prompt.

    Raises
    ------
    PromptError
        The model has no tokenizer, or one whose prompts cannot be put together; or the prompts do not fit a length, or a length
        the model.
    UnsupportedModel
        The model predicts no tokens, or has cross-attention.
    DiffscopeError
        There is nothing to draw.
    """
    if not scope.runner.predicts:
        raise UnsupportedModel(f"{scope.name} predicts no next tokens, so no query of it answers")
    lengths = usual_lengths(scope) if lengths is None else lengths
    check_several("lengths", lengths, [128, 512])
    lengths = tuple(lengths)
    if not lengths or prompts < 1 or distractors < 1:
        raise DiffscopeError("choose one length, one prompt and one distractor at least")
    if scope.max_length is not None and max(lengths) > scope.max_length:
        raise PromptError(f"{scope.name} has positions for {scope.max_length} tokens; choose no length above that")
    if task is None:
        task = Retrieval(scope.tokenizer, template=template_of(scope.model))  # type: ignore[arg-type]  # without one it says so
    cells = {
        (length, depth): [
            task.controlled(length, distractors, [seed, number], slots=distractors, depth=depth) for number in range(prompts)
        ]
        for length in lengths
        for depth in DEPTHS
    }
    estimates = depths_of(scope, cells, edits, progress)
    estimates = estimates.assign_attrs(distractors=distractors, seed=seed, template=task.template)
    return Reading(_sentence(estimates), estimates)


def depths_of(
    scope: Scope,
    cells: Mapping[tuple[int, float], Sequence[Prompt]],
    edits: Sequence[Edit] = (),
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure where the last query of given prompts looks, and whether they are answered; the ``estimates`` of :func:`depths`.

    `cells` has the prompts of each length and depth, equally many: every length with every depth, length by length.
    UnsupportedModel if the model's queries look at tokens of another side.
    """
    if scope.crosses:
        raise UnsupportedModel(f"{scope.name} has cross-attention, and this is of prompts whose tokens look at one another")
    all_prompts = [prompt for prompts in cells.values() for prompt in prompts]
    lengths, depths = (list(dict.fromkeys(axis)) for axis in zip(*cells))
    count = len(all_prompts) // len(cells)
    looks = _looks(scope, all_prompts, edits, progress or (lambda done, total: None))
    table = xr.combine_nested([[_cell(islice(looks, count)) for _ in depths] for _ in lengths], CELL, combine_attrs="override")
    axes = {
        "length": ("length", lengths, {"long_name": "tokens of the prompt"}),
        "depth": ("depth", depths, {"long_name": "depth of the answer"}),
    }
    table = table.assign_coords(axes).transpose(*CELL, ...)
    return _estimates(table).assign_attrs(
        table.attrs,
        prompts=count,
        digest=_digest(all_prompts),
        averaged_over=f"heads, then layers, then {counted(count, 'prompt')} of each length and depth",
    )


def _digest(prompts: Sequence[Prompt]) -> str:
    """Return a digest of prompts, by which the same ones are recognised."""
    ids = repr([prompt.ids for prompt in prompts]).encode()
    return hashlib.sha256(ids).hexdigest()[:16]


def _looks(scope: Scope, prompts: Sequence[Prompt], edits: Sequence[Edit], progress: Progress) -> Iterator[xr.Dataset]:
    """Measure prompts one by one."""
    progress(0, len(prompts))
    seen: dict[int, np.ndarray] = {}  # by length of the prompt
    for number, prompt in enumerate(prompts, 1):
        with scope.edit(*edits):
            n = len(prompt.ids)
            if n not in seen:
                seen[n] = _seen(scope, prompt.ids)
            look = _look(scope, prompt, seen[n])
        progress(number, len(prompts))
        yield look


def _seen(scope: Scope, ids: Sequence[int]) -> np.ndarray:
    """Return which keys the last query sees in each layer, (layer, key); none if that takes too much memory."""
    last = [len(ids) - 1]
    try:
        layers = scope.capture(ids).layers
    except InsufficientMemory:  # what is measured needs one layer at a time
        return np.zeros((scope.n_layers, len(ids)), dtype=bool)
    return visible_keys(layers, last)[:, 0]


def _look(scope: Scope, prompt: Prompt, seen: np.ndarray) -> xr.Dataset:
    """Measure where the last query of a prompt looks, by layer and head, and score the answer."""
    n = len(prompt.ids)
    spans = {name: prompt.spans[name] for name in SPANS}
    measured = scope.measure(prompt.ids, NEEDED, spans=spans, queries=[n - 1])
    answered = score_answers(scope, [prompt])
    encoded = scope.encode(prompt.ids, spans).span_positions()
    mass = measured["span_mass"].isel(query=0, drop=True)
    uniform = uniform_share(seen, {name: encoded[name] for name in mass["span"].values.tolist()})
    variables = {
        "mass": mass,
        "negative": negative_mass(measured).isel(query=0, drop=True),
        "uniform": (("layer", "span"), uniform),
        "exact": float(answered["exact"][0]),
        "log_odds": float(answered["log_odds"][0]) if prompt.distractors else np.nan,
    }
    return xr.Dataset(variables, attrs=measured.attrs)


def _cell(looks: Iterator[xr.Dataset]) -> xr.Dataset:
    """Collect the prompts of one length and depth: their values one by one, and the mean of each head over them."""
    prompts = xr.concat(looks, "prompt", combine_attrs="override")
    over_heads = averaged(prompts["mass"], ["head", "layer"]).values
    return xr.Dataset(
        {
            "mass_of_prompt": over_heads,
            "by_head": mean_over_prompts(prompts["mass"]),
            "negative": mean_over_prompts(averaged(prompts["negative"], ["head", "layer"]).values),
            "negative_by_head": mean_over_prompts(prompts["negative"]),
            "undefined": prompts["mass"].sel(map="D").isnull().sum(),
            "uniform": mean_over_prompts(averaged(prompts["uniform"], ["layer"], "mean").values),
            "exact_of_prompt": prompts["exact"],
            "log_odds_of_prompt": prompts["log_odds"],
        },
        attrs=prompts.attrs,
    )


def _estimates(table: xr.Dataset) -> xr.Dataset:
    """Compute means over prompts with their errors."""
    mass = table["mass_of_prompt"]
    odds = table["log_odds_of_prompt"]
    right = table["exact_of_prompt"]
    low, high = _interval(right)
    alike = "mean over heads, then layers, of the last query"
    answers_so = "answers whose tokens are all the first choice / answers"
    against = "log p(answer) − log Σ p(distractor)"
    variables = {
        **with_error("mass", mass, "attention on each span", alike),
        "negative": described(table["negative"], "negative weights on each span", f"{FORMULA}, {alike}, then prompts"),
        "negative_by_head": described(
            table["negative_by_head"], "negative weights on each span, by head", f"{FORMULA}, mean over prompts"
        ),
        "by_head": described(table["by_head"], "attention on each span, by head", "mean over prompts, of the last query"),
        "uniform": described(
            table["uniform"],
            "what uniform attention gives",
            "keys of the span / keys that the last query sees, mean over layers that see it and others",
        ),
        "exact": described(mean_over_prompts(right), "share of exact answers", answers_so),
        "exact_low": described(low, "least share of exact answers", "lower end of the 95 % interval (Wilson)"),
        "exact_high": described(high, "largest share of exact answers", "upper end of the 95 % interval (Wilson)"),
        "exact_of_prompt": described(right, "whether the answer is exact", "1: every token of it is the first choice"),
        **with_error("log_odds", odds, "log-odds of the answer", against, "nats"),
    }
    variables["mass"].attrs["undefined_left_out"] = int(table["undefined"].sum())
    return xr.Dataset(variables)


def _interval(right: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the ends of the 95 % interval of the share of exact answers."""
    prompts = right.sizes["prompt"]
    count = right.sum("prompt")
    ends = [of_share(int(exact), prompts) for exact in count.values.flat]
    low, high = (np.reshape(values, count.shape) for values in zip(*ends))
    return count.copy(data=low), count.copy(data=high)


def _sentence(estimates: xr.Dataset) -> str:
    """Say how prompts are answered, and where D is, beside A1 and uniform attention."""
    share = estimates.sel(normalisation="share")
    right = estimates["exact_of_prompt"]
    lengths = listed([str(length) for length in estimates["length"].values.tolist()])
    return (
        f"{int(right.sum())} of {counted(right.size, 'answer')} are exact, on prompts of {lengths} tokens that state "
        f"{estimates.attrs['distractors'] + 1} numbers. At the last token, mean over heads, layers and prompts, the answer gets "
        f"{_gets(share, 'answer')}, irrelevant tokens {_gets(share, 'irrelevant')}.{_strongest(share)}"
    )


def _strongest(estimates: xr.Dataset) -> str:
    """Name the head that gives the answer most, mean over prompts, lengths and depths."""
    of_heads = estimates[["by_head", "negative_by_head"]].sel(map="D", span="answer").mean(CELL)
    heads = of_heads["by_head"]
    if not heads.notnull().any():
        return ""
    best = of_heads.isel(heads.argmax(...))
    share, negative = float(best["by_head"]), float(best["negative_by_head"])
    signed = f", {signs.of_it(share, negative)}" if has_second_map(estimates["mass_of_prompt"]) else ""
    return f" The head with most of the answer is L{int(best['layer'])}H{int(best['head'])}: {percent(share)}{signed}."


def _gets(share: xr.Dataset, span: str) -> str:
    """Say what D gives to a span, and beside it A1 and uniform attention."""
    mass = share["mass_of_prompt"].sel(span=span)
    mean, error = _over_cells(mass.sel(map="D"))
    if not np.isfinite(mean):
        return "no share, since D is zero everywhere"
    differential = has_second_map(mass)
    numbers_beside = [f"A1 {percent(_over_cells(mass.sel(map='A1'))[0])}"] if differential else []
    uniform = float(share["uniform"].sel(span=span).mean())
    numbers_beside += [f"uniform attention {percent(uniform)}"] if np.isfinite(uniform) else []
    within = f" ± {two_figures(100 * error)} points" if np.isfinite(error) else ""
    weights = "|D|" if differential else "A"
    if differential:
        numbers_beside.insert(0, signs.of_it(mean, float(share["negative"].sel(map="D", span=span).mean(CELL))))
    return f"{percent(mean)}{within} of {weights}" + (f" ({', '.join(numbers_beside)})" if numbers_beside else "")


def has_second_map(mass: xr.DataArray) -> bool:
    """Return whether there is a second map."""
    return bool(mass.sel(map="A2").notnull().any())


def _over_cells(values: xr.DataArray) -> tuple[float, float]:
    """Average over all prompts, lengths and depths, and return the mean with its standard error.

    Prompt i has the same cities and numbers at all lengths and depths, so only the means of prompts vary independently.
    """
    of_prompt = values.mean(CELL)
    return float(mean_over_prompts(of_prompt)), float(standard_error(of_prompt))


def common_lengths(estimates: Mapping[str, xr.Dataset]) -> list[int]:
    """Return the lengths of prompts that all of several readings of :func:`depths` have, in ascending order.

    Raises DiffscopeError if they are of other numbers of prompts or distractors, of another seed, or have no length in common.
    """
    name, first = next(iter(estimates.items()))
    lengths = set(first["length"].values.tolist())
    for other, table in estimates.items():
        for what in ALIKE:
            if first.attrs.get(what) != table.attrs.get(what):
                values = f"{first.attrs.get(what)} and {table.attrs.get(what)}"
                raise DiffscopeError(f"{name} and {other} were measured on other prompts ({what}: {values}); give all the same")
        lengths &= set(table["length"].values.tolist())
    if not lengths:
        raise DiffscopeError(f"{' and '.join(estimates)} have no length of prompts in common; measure one length of all")
    return sorted(lengths)


def contrast(first: xr.Dataset, second: xr.Dataset, names: tuple[str, str]) -> Reading:
    """Contrast what two sides give to the answer.

    Parameters
    ----------
    first, second : xarray.Dataset
        The ``estimates`` of :func:`depths`, over the same lengths.
    names : (str, str)
        What the two are called.

    Returns
    -------
    Reading
        ``estimates``: those of both that are not of single heads or prompts, along ``side``; ``mass_low`` and ``mass_high``, one
        standard error below and above ``mass``; ``difference`` (span, normalisation), first − second of D, mean over lengths,
        depths and prompts, and its standard error over prompts, ``difference_se``: prompt by prompt where both were given the
        same tokens (``attrs["paired"]``); ``log_odds_difference`` and ``log_odds_difference_se`` likewise.

    Raises
    ------
    DiffscopeError
        They were taken with other lengths or numbers of prompts.
    """
    if first["length"].values.tolist() != second["length"].values.tolist():
        raise DiffscopeError("the two were measured on other prompts; give both the same lengths, numbers and seed")
    common_lengths(dict(zip(names, (first, second))))
    paired = first.attrs["digest"] == second.attrs["digest"]
    variables = [str(name) for name, values in first.data_vars.items() if not {"layer", "prompt"} & set(values.dims)]
    sides = xr.concat(
        [first[variables], second[variables]], xr.DataArray(list(names), dims="side", name="side"), combine_attrs="drop_conflicts"
    )
    sides["mass_low"] = described(sides["mass"] - sides["mass_se"], "attention less its standard error", "mass − mass_se")
    sides["mass_high"] = described(sides["mass"] + sides["mass_se"], "attention and its standard error", "mass + mass_se")
    masses = [side["mass_of_prompt"].sel(map="D", drop=True) for side in (first, second)]
    odds = [side["log_odds_of_prompt"] for side in (first, second)]
    sides.update(_difference("difference", masses, paired, "difference of D", "1"))
    sides.update(_difference("log_odds_difference", odds, paired, "difference of the log-odds", "nats"))
    sides.attrs |= {"paired": int(paired)}
    return Reading(_contrast_sentence(sides, first, second), sides)


def _difference(name: str, sides: Sequence[xr.DataArray], paired: bool, words: str, units: str) -> dict[str, xr.DataArray]:
    """Return the difference of values of prompts, and its standard error ``NAME_se``: prompt by prompt if they are paired."""
    one, other = (side.mean(CELL) for side in sides)
    error = standard_error(one - other) if paired else (standard_error(one) ** 2 + standard_error(other) ** 2) ** 0.5
    about = "first − second, mean over lengths, depths and prompts"
    return {
        name: described(mean_over_prompts(one - other), words, about, units),
        f"{name}_se": described(error, f"standard error of the {words}", "over prompts", units),
    }


def _contrast_sentence(sides: xr.Dataset, first: xr.Dataset, second: xr.Dataset) -> str:
    """Say what both give to the answer, the difference in all normalisations, and how both answer."""
    names = [str(name) for name in sides["side"].values]
    mass = sides["mass"].sel(map="D", normalisation="share").mean(CELL)
    if mass.sel(span="answer").isnull().any():
        return f"D is zero everywhere on a side, so that there is nothing to compare between {names[0]} and {names[1]}."
    answer, rest = (mass.sel(span=span).values.tolist() for span in ("answer", "irrelevant"))
    change = sides[["difference", "difference_se"]].sel(span="answer")
    share = 100 * change.sel(normalisation="share")
    more = _more(float(share["difference"]), float(share["difference_se"]), "points")
    how = "The prompts are the same" if sides.attrs["paired"] else "The prompts are not of the same tokens"
    right = listed([str(int(side["exact_of_prompt"].sum())) for side in (first, second)])
    shares = [f"{percent(value)}{_signed(side, value)}" for value, side in zip(answer, (first, second))]
    others = [f"{percent(value)}{_signed(side, value, 'irrelevant')}" for value, side in zip(rest, (first, second))]
    return (
        f"{names[0]} gives the answer {shares[0]}, {names[1]} {shares[1]}: {more}. "
        f"{_by_normalisation(change['difference'])}. Irrelevant tokens get {listed(others)}. "
        f"{right} of {counted(first['exact_of_prompt'].size, 'answer')} are exact{_odds(sides)}. {how}."
    )


def _more(difference: float, error: float, units: str) -> str:
    """Say how much more the first is than the second, with the standard error if there is one."""
    if not difference:
        return "the same"
    within = f" (standard error {two_figures(error)})" if np.isfinite(error) else ""
    return f"{two_figures(abs(difference))} {units} {'more' if difference > 0 else 'less'}{within}"


def _odds(sides: xr.Dataset) -> str:
    """Say what the log-odds of the answers are; nothing without distractors."""
    one, other = sides["log_odds"].mean(CELL).values.tolist()
    if not np.isfinite(one - other):
        return ""
    more = _more(float(sides["log_odds_difference"]), float(sides["log_odds_difference_se"]), "nats")
    return f", with log-odds of {decibels(one)} and {decibels(other)} nats: {more}"


def _signed(estimates: xr.Dataset, share: float, span: str = "answer") -> str:
    """Say how much of what a span gets of |D| is negative; nothing for standard attention."""
    if not has_second_map(estimates["mass_of_prompt"]):
        return ""
    return f" of |D| ({signs.of_it(share, float(estimates['negative'].sel(map='D', span=span).mean(CELL)))})"


def _by_normalisation(differences: xr.DataArray) -> str:
    """Say whether the sign of a difference is the same in all normalisations."""
    values = {str(name): float(value) for name, value in zip(differences["normalisation"].values, differences.values)}
    defined = {name: value for name, value in values.items() if np.isfinite(value)}
    seen = {np.sign(value) for value in defined.values()}
    words = [f"{'+' if value > 0 else ''}{decimal(value)} {name}" for name, value in defined.items()]
    missing = [f"undefined {name}" for name in values if name not in defined]
    start = "The sign depends on the normalisation"
    if seen == {0.0}:
        start = "There is no difference in any normalisation"
    elif len(seen) == 1:
        start = "The sign is the same in all normalisations" + (" that are defined" if missing else "")
    return f"{start}: {listed([*words, *missing])}"
