"""Captures of two models on the same prompts, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xarray as xr

from diffscope import render as display
from diffscope.capture.capture import Capture, CaptureBatch
from diffscope.capture.repr import lengths, spans_marked
from diffscope.errors import MeasurementInterrupted
from diffscope.stats.averaging import average
from diffscope.stats.sampling import QuerySample

Names = Sequence[str] | str | None
Queries = str | slice | Sequence[int] | QuerySample | None
MAPS = ("A1", "A2", "lambda_A2", "D")


@dataclass(frozen=True)
class Comparison:
    """Captures of two models on the same prompts; what it returns has a dimension ``model``.

    Attributes
    ----------
    names : tuple of str
        What the two models are called; two of one name are numbered.
    captures : tuple of Capture, or of CaptureBatch
    """

    names: tuple[str, str]
    captures: tuple[Capture | CaptureBatch, Capture | CaptureBatch]

    def __repr__(self) -> str:
        return f"<Comparison of {' and '.join(self.names)}: {lengths(self.captures[0].prompts)}>"

    def _repr_html_(self) -> str:
        sides = [capture.portrait() for capture in self.captures]
        rows = [(name, *(side[name] for side in sides)) for name in sides[0] if any(side.get(name) for side in sides)]
        text = spans_marked(self.captures[0].prompts[0])
        return display.card(f"Comparison of {' and '.join(self.names)}", display.table(("", *self.names), rows), text)

    def measure(self, statistics: Names = None, *, queries: Queries = None) -> xr.Dataset:
        """The same statistics of both models.

        Parameters
        ----------
        statistics, queries
            As for ``Capture.measure``.

        Returns
        -------
        xarray.Dataset
            What ``Capture.measure`` gives of each, along ``model``; NaN where a model lacks the layer, head, map or statistic.

        Raises
        ------
        MeasurementInterrupted
            Interrupted after the first layer; ``error.measured`` has what was finished.
        """
        measured: list[xr.Dataset] = []
        try:
            for capture in self.captures:
                measured.append(capture.measure(statistics, queries=queries))
        except MeasurementInterrupted as interrupt:
            raise MeasurementInterrupted(self._along_model([*measured, interrupt.measured])) from None
        return self._along_model(measured)

    def difference(self, statistics: Names = None, *, queries: Queries = None) -> xr.Dataset:
        """First model − second model, of averages over heads: head h of one model is not head h of another.

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
        left_out = ", ".join(name for name in measured.data_vars if name not in averages)
        words = f"{self.names[0]} − {self.names[1]}, of averages over heads"
        return difference.assign_attrs(measured.attrs, difference=words, left_out=left_out)

    def maps(self, layer: int | tuple[int, int], head: int | tuple[int, int], prompt: int = 0) -> xr.Dataset:
        """The maps of one head of each model.

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
        """
        layers = (layer, layer) if isinstance(layer, int) else layer
        heads = (head, head) if isinstance(head, int) else head
        return self._along_model([_maps(*place, prompt) for place in zip(self.captures, layers, heads)])

    def _along_model(self, datasets: Sequence[xr.Dataset]) -> xr.Dataset:
        dimension = xr.DataArray(list(self.names[: len(datasets)]), dims="model", name="model")
        together = xr.concat(
            datasets,
            dimension,
            data_vars="all",
            coords="minimal",
            join="outer",
            combine_attrs="drop_conflicts",
            compat="override",
        )
        edits = [f"{name}: {one.facts['edits']}" for name, one in zip(self.names, self.captures) if "edits" in one.facts]
        return together.assign_attrs(edits="; ".join(edits)) if edits else together  # which need not be on in both


def _maps(capture: Capture | CaptureBatch, layer: int, head: int, prompt: int) -> xr.Dataset:
    differential = capture.layers[capture.layer_numbers.index(layer)].differential
    maps = capture.maps(layer, [head], prompt, names=MAPS if differential else ("A1", "D"))
    lam = maps.attrs["lam"]
    about = {"head": head, "lam": lam if isinstance(lam, str) else lam[0]}
    one = maps.isel(head=0, drop=True).assign_attrs(about)
    return one.assign({name: array.assign_attrs(about) for name, array in one.data_vars.items()})
