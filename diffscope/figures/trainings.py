"""Figures of a training: one head at every checkpoint, and all heads over the steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Unpack

import xarray as xr

from diffscope.capture.captions import edits_of
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError
from diffscope.figures import images as _images
from diffscope.figures import training_chart as _training_chart
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.stats.labels import called

Contrast = Literal["sqrt", "linear"]
ALONG = {"training": "at every checkpoint of a training", "denoising": "at steps of denoising"}

if TYPE_CHECKING:
    from diffscope.readings.reading import Reading


@figure(wide=False)
def training(
    subject: Reading | xr.Dataset | Mapping[int, Capture] | str | os.PathLike,
    *,
    statistic: str = "answer",
    layer: int | None = None,
    head: int = 0,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw a statistic of every head over the steps of a training, one head set apart, beside its control where it has one.

    Parameters
    ----------
    subject : Reading, its estimates, mapping of int to Capture, or a monitored training
        Of :func:`diffscope.readings.along_training`; captures of one prompt by step, which are read so at the last token; or the
        folder of a :func:`diffscope.monitor`, as a path or opened, whose statistics are averages over its prompts.
    statistic : str
        One of its variables: ``lambda``, ``answer``, ``sink``, ``overlap``, ``cosine``, ``entropy``, ``gini``; of a monitor, what
        it measures.
    layer, head : int
        The head that is set apart; by default of the first layer.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such statistic or head, it is undefined at every step, or the captures are of different prompts.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures
    >>> text = "Magic numbers. Paris 7421. Rome 2174. Paris"
    >>> captures = {step: diffscope.load(f"mini-diff@{step}").capture(text) for step in (0, 400)}
    >>> figures.training(captures, statistic="lambda")
    <diffscope figure 'training' of value (panel: 1, series: 3, x: 2)>
    """
    if isinstance(subject, str | os.PathLike):
        from diffscope.monitoring import open_record

        subject = open_record(subject)
    estimates = getattr(subject, "estimates", subject)
    model, under, monitored = "", "", isinstance(estimates, xr.Dataset) and "alerts" in estimates.attrs
    if monitored:
        model, estimates = estimates.attrs["model"], _of_monitor(estimates)
    if isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset):
        from diffscope.readings.training import along_training

        if not all(isinstance(cap, Capture) for cap in subject.values()):
            raise DiffscopeError("this figure is of captures of one prompt by step of training, such as {0: …, 400: …}")
        estimates = along_training(subject).estimates
        model = next(iter(subject.values())).model_name.partition("@")[0]
        edits = edits_of({f"step {step}": cap for step, cap in subject.items()})
        under = edits and f", under {edits}"
    data = _training_chart.data(estimates, statistic, layer, head, evenly=not monitored)
    data.attrs["signs"] = _signs(estimates, statistic)
    data.attrs["model"] = model
    data.attrs["caption"] = f"{data.attrs['y']} by step of training{under}; {data.attrs['apart'][0]} is set apart"
    return Drawing(_training_chart.CHART, data)


def _of_monitor(kept: xr.Dataset) -> xr.Dataset:
    """Return what a monitor kept by step, layer and head, and of what compares two maps its control along ``control``."""
    from diffscope.monitoring.courses import courses
    from diffscope.monitoring.measuring import CONTROL
    from diffscope.readings.pairing_control import MIDDLE, OWN

    measured = courses(kept).drop_vars("loss", errors="ignore")
    for name in [name for name in measured if f"{name}{CONTROL}" in measured]:
        controls = xr.DataArray([OWN, MIDDLE], dims="control", name="control")
        pair = xr.concat([measured[name], measured[f"{name}{CONTROL}"]], controls, combine_attrs="override")
        measured = measured.drop_vars([name, f"{name}{CONTROL}"]).assign({name: pair})
    return measured


def _signs(estimates: xr.Dataset, statistic: str) -> str:
    """Return in which heads a share of |D| is negative at the last step; nothing of other statistics."""
    from diffscope.readings import signs  # with which models' code would be loaded for every figure

    if f"{statistic}_negative" not in estimates or estimates["lambda"].isnull().all():
        return ""
    last = estimates.isel(step=-1)
    heads = signs.by_head(last[statistic], last[f"{statistic}_negative"], called(statistic))
    return signs.within(f"At step {int(last['step'])}", heads)


@figure()
def checkpoints(
    captures: Mapping[int, Capture],
    *,
    layer: int | None = None,
    head: int = 0,
    map: str = "D",
    size: int = _images.SIZE,
    contrast: Contrast = "linear",
    along: Literal["training", "denoising"] = "training",
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw one head's map at every checkpoint of a training, or at steps of denoising, on one scale.

    Parameters
    ----------
    captures : mapping of int to Capture
        Of one prompt, by step.
    layer, head : int
        By default of the first layer.
    map : str
        Which map; of standard attention it is A.
    size : int
        The largest number of bins a side; of longer prompts a bin shows its value of largest magnitude.
    contrast
        As of :func:`diffscope.figures.maps`.
    along : {"training", "denoising"}
        What the steps are of; those of denoising are captures of :func:`diffscope.denoising_steps`, by number.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such layer, head or map, or the captures are of different prompts.
    """
    if along not in ALONG:
        raise DiffscopeError(f"along={along!r}: there are steps of {' and of '.join(ALONG)}")
    if size < 1:
        raise DiffscopeError(f"a map of {size} tokens a side shows nothing; give size=1 or more")
    data = _images.checkpoint_data(captures, layer, head, map, size, along)
    about = f"{data.attrs['title']}: one head's map {ALONG[along]}"
    return Drawing(_images.CHART, data, {"contrast": contrast}, about)
