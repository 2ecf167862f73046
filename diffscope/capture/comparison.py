"""Compare two models on the same prompts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import xarray as xr

from diffscope import render as display
from diffscope.attention.maps import DEFAULT_MAPS
from diffscope.capture.captions import edits_of
from diffscope.capture.capture import Capture
from diffscope.capture.repr import facts, lengths, spans_marked
from diffscope.errors import DiffscopeError, MeasurementInterrupted, check_index
from diffscope.stats.averaging import average
from diffscope.stats.sample import WEIGHT, QuerySample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Names = Sequence[str] | str | None
Number = TypeVar("Number", bound=int | None)
Queries = str | slice | Sequence[int] | QuerySample | None


class Captures(Protocol):
    """Whatever captures prompts as :class:`diffscope.Scope` does."""

    name: str
    tokenizer: PreTrainedTokenizerBase | None

    def capture(self, prompt: Any, spans: Any = None) -> Capture:
        """Capture a prompt, or a batch."""
        ...


def compare(
    first: Captures | Capture,
    second: Captures | Capture,
    prompts: Any = None,
    spans: Mapping | Sequence[Mapping] | None = None,
) -> Comparison:
    """Compare two models on the same prompts.

    Parameters
    ----------
    first, second : Scope, or Capture
        Two models that capture the prompts, or two captures of the same tokens that you already have.
    prompts, spans
        As for :meth:`diffscope.Scope.capture`; not given with two captures.

    Returns
    -------
    Comparison

    Raises
    ------
    DiffscopeError
        The models' tokenizers differ, so that the same prompts would be other tokens, or the captures are of other tokens. Or
        prompts are missing, or given beside captures, or one of the two is neither a scope nor a capture.
    PromptError, SpanError, FidelityError, InsufficientMemory
        As of :meth:`diffscope.Scope.capture`.
    """
    if isinstance(first, Capture) and isinstance(second, Capture):
        if prompts is not None or spans is not None:
            raise DiffscopeError("captures hold their prompts and spans already; compare them without, or give two scopes")
        return _of_same_tokens(_numbered(first.facts["model"], second.facts["model"]), first, second)
    if isinstance(first, Capture) or isinstance(second, Capture):
        raise DiffscopeError("a capture is compared with a capture, and a scope with a scope; give two of one kind")
    for one in (first, second):
        if not hasattr(one, "capture"):
            named = repr(one) if isinstance(one, str) else f"a {type(one).__name__}"
            raise DiffscopeError(f"{named} is neither a scope nor a capture; open a model with diffscope.load")
    if prompts is None:
        raise DiffscopeError("two scopes are compared on prompts; give them, such as compare(first, second, text)")
    vocabularies = [scope.tokenizer.get_vocab() for scope in (first, second) if scope.tokenizer is not None]
    if any(vocabulary != vocabularies[0] for vocabulary in vocabularies):
        raise DiffscopeError(f"{first.name} and {second.name} have different tokenizers; compare models that share one")
    return _of_same_tokens(_numbered(first.name, second.name), first.capture(prompts, spans), second.capture(prompts, spans))


def _of_same_tokens(names: tuple[str, str], first: Capture, second: Capture) -> Comparison:
    """Return the comparison of two captures, or raise DiffscopeError if they are of different tokens."""
    comparison = Comparison(names, (first, second))
    comparison.check_tokens()
    return comparison


def _numbered(first: str, second: str) -> tuple[str, str]:
    """Return the names of two models, with numbers if they are the same."""
    return (f"{first} (1)", f"{second} (2)") if first == second else (first, second)


@dataclass(frozen=True)
class Comparison:
    """Captures of two models on the same prompts; its results have a dimension ``model``. :func:`compare` makes one.

    Made directly it holds any two captures, such as of one model on two prompts, whose statistics are compared all the same.

    Attributes
    ----------
    names : tuple of str
        Names of the two models, which differ.
    captures : tuple of Capture
    """

    names: tuple[str, str]
    captures: tuple[Capture, Capture]

    def __repr__(self) -> str:
        return f"<Comparison of {' and '.join(self.names)}: {lengths(self.captures[0].prompts)}>"

    def _repr_html_(self) -> str:
        sides = [facts(capture) for capture in self.captures]
        rows = [(name, *(side[name] for side in sides)) for name in sides[0] if any(side.get(name) for side in sides)]
        text = spans_marked(self.captures[0].prompts[0])
        return display.card(f"Comparison of {' and '.join(self.names)}", display.table(("", *self.names), rows), text)

    def __getitem__(self, index: int) -> Comparison:
        """Return the comparison of one prompt of a batch; raises IndexError if there is no such prompt."""
        return replace(self, captures=(self.captures[0][index], self.captures[1][index]))

    def check_tokens(self) -> None:
        """Raise DiffscopeError if the captures are of different tokens, on either side."""
        # Prompts that were given as ids to a model without a tokenizer have no text, and numbers as tokens.
        first, second = (capture.all_prompts for capture in self.captures)
        pairs = [(a.tokens, b.tokens) if a.text and b.text else (a.ids, b.ids) for a, b in zip(first, second)]
        counts = {(len(capture.prompts), len(capture.all_prompts)) for capture in self.captures}
        if len(counts) > 1 or any(a != b for a, b in pairs):
            raise DiffscopeError(
                f"the captures of {' and '.join(self.names)} are of different tokens; compare models that share a tokenizer, on "
                "the same prompts, or two prompts with readings.differences"
            )

    def measure(self, statistics: Names = None, *, queries: Queries = None) -> xr.Dataset:
        """Measure the same statistics of both models.

        Parameters
        ----------
        statistics, queries
            As for ``Capture.measure``.

        Returns
        -------
        xarray.Dataset
            Results of ``Capture.measure`` of each model along ``model``, with NaN if a model lacks the layer, head, map or
            statistic.

        Raises
        ------
        MeasurementInterrupted
            Interrupted after the first layer; ``error.measured`` has what was finished.
        """
        measured: list[xr.Dataset] = []
        try:
            for capture in self.captures:
                measured.append(capture.measure(statistics, queries=queries))
        except KeyboardInterrupt as interrupt:
            finished = [*measured, *([interrupt.measured] if isinstance(interrupt, MeasurementInterrupted) else [])]
            if not finished:
                raise
            raise MeasurementInterrupted(self._along_model(finished)) from None
        return self._along_model(measured)

    def difference(self, statistics: Names = None, *, queries: Queries = None) -> xr.Dataset:
        """Subtract the second model's averages over heads from the first's: head h of one model is not head h of another.

        Averages are those of ``diffscope.average``; statistics of which an average says nothing (positions, decibels) and those
        of pairs of heads are left out, and ``attrs["left_out"]`` names them.

        Parameters are as for :meth:`measure`.

        Returns
        -------
        xarray.Dataset
            By layer, and by whatever else a statistic has dimensions; ``attrs["difference"]`` says what is subtracted.
        """
        measured = self.measure(statistics, queries=queries)
        averages = average(measured, "head")
        averages = averages.drop_vars([name for name, values in averages.items() if "other_head" in values.dims])
        first, second = (averages.sel(model=name, drop=True) for name in self.names)
        with xr.set_options(keep_attrs=True):
            difference = first - second
        left_out = ", ".join(str(name) for name in measured.data_vars if name not in averages)
        words = f"{self.names[0]} − {self.names[1]}, of averages over heads"
        return difference.assign_attrs(measured.attrs, difference=words, left_out=left_out)

    def maps(self, layer: int | tuple[int, int], head: int | tuple[int, int], prompt: int = 0) -> xr.Dataset:
        """Return the maps of one head of each model.

        Parameters
        ----------
        layer, head : int, or two
            Of both models, or of the first and of the second.
        prompt : int
            Which prompt of a batch.

        Returns
        -------
        xarray.Dataset, (model, query, key)
            ``A1``, ``A2``, ``lambda_A2`` and ``D``; the second map of standard attention is NaN, and its D is A1.

        Raises
        ------
        DiffscopeError
            The captures are of different tokens, so that their maps have no axes in common; or there is no such layer, head or
            prompt.
        """
        self.check_tokens()
        layers, heads = one_each(self.names, "layer", layer), one_each(self.names, "head", head)
        captures = dict(zip(self.names, self.captures))
        return self._along_model([_maps(captures[name], layers[name], heads[name], prompt) for name in self.names])

    def _along_model(self, datasets: Sequence[xr.Dataset]) -> xr.Dataset:
        together = along_models(self.names[: len(datasets)], datasets)
        edits = edits_of(dict(zip(self.names, self.captures)))  # which need not be on in both
        return together.assign_attrs(edits=edits) if edits else together


def along_models(names: Sequence[str], datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Put what was measured of models side by side along ``model``, with NaN if one lacks the layer, head, map or statistic.

    Raises DiffscopeError if they have different numbers of prompts, or samples of queries that are not the same queries.
    """
    counts = [dataset.sizes.get("prompt", 0) for dataset in datasets]
    if len(set(counts)) > 1:
        each = ", ".join(f"{name}: {f'a batch of {n}' if n else 'one prompt by itself'}" for name, n in zip(names, counts))
        raise DiffscopeError(
            f"models are compared on equally many prompts, and not on {each}; capture the same prompts with each"
        )
    samples = {tuple(each["query"].values) if WEIGHT in each.coords else None for each in datasets}
    if len(samples) > 1:
        raise DiffscopeError("the models were measured on other samples of queries; give one sample, and prompts of one length")
    return xr.concat(
        datasets,
        xr.DataArray(list(names), dims="model", name="model"),
        data_vars="all",
        coords="minimal",
        join="outer",
        combine_attrs="drop_conflicts",
        compat="override",
    )


def one_each(names: Collection[str], what: str, number: Number | Sequence[Number]) -> dict[str, Number]:
    """Return a layer or a head by the name of each model; one number is for all of them.

    Raises
    ------
    DiffscopeError
        There are more or fewer than models.
    """
    numbers = number if isinstance(number, Sequence) else [number] * len(names)
    if len(numbers) != len(names):
        raise DiffscopeError(f"{what} is one for all, or one for each of {len(names)}, and not {number}")
    return dict(zip(names, numbers))


def _maps(capture: Capture, layer: int, head: int, prompt: int) -> xr.Dataset:
    check_index("prompt", prompt, range(len(capture)))
    differential = capture.layer(layer).differential
    maps = capture[prompt].maps(layer, [head], DEFAULT_MAPS if differential else ("A1", "D"))
    lam = maps.attrs["lam"]
    about = {"head": head, "lam": lam if isinstance(lam, str) else lam[0]}
    one = maps.isel(head=0, drop=True).assign_attrs(about)
    return one.assign({name: array.assign_attrs(about) for name, array in one.data_vars.items()})
