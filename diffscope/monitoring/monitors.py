"""Measure a model on fixed prompts while it trains, without disturbing the training."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed
import xarray as xr
from torch import nn

from diffscope.capture.capture import Capture
from diffscope.errors import CorruptFile, DiffscopeError, DiffscopeWarning, FidelityError, check_index, check_several, first_line
from diffscope.monitoring.alerts import NOT_FINITE, Alert, Rule, default_rules, not_finite
from diffscope.monitoring.flat import PREFIX, flat
from diffscope.monitoring.gradients import RATIO, BranchGradients
from diffscope.monitoring.kept_maps import Head, captured, images
from diffscope.monitoring.measuring import BRANCHES, LARGEST, by_length, measured
from diffscope.monitoring.questions import ANSWERED, averages, digest
from diffscope.monitoring.record import ALERTS, LOGGED, WEIGHTS, Record
from diffscope.monitoring.schedule import EARLY, Schedule
from diffscope.monitoring.shards import Shards, agreed, is_sharded
from diffscope.monitoring.undisturbed import fingerprint, finite, undisturbed
from diffscope.numbers import numbered, short_duration
from diffscope.prompts.inputs import Spans
from diffscope.prompts.selection import whole_number
from diffscope.scope.answers import encode_questions
from diffscope.scope.scope import Scope, load
from diffscope.scope.unwrap import unwrapped
from diffscope.stats.averaging import average, averaged
from diffscope.stats.registry import LABELS, STATISTICS, select
from diffscope.stats.sample import QuerySample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

USUAL = ("lambda", "overlap", "noise_gain", "entropy", "gini", "sink_mass", "negative_share", "row_sum", "logit_outliers")
SHOWN = 3  # alerts of one rule and step that are said on stderr; all are kept


class Monitor:
    """Measure statistics of a model on fixed prompts every so many steps of its training.

    Weights, optimizer, random numbers, buffers, gradients and the mode of every module are what they would be without it. The
    model is run in the precision of its weights, without autocast and uncompiled, in evaluation mode. What fails inside is warned
    of once and never ends a training. Of several processes the first measures. Shards (FSDP2) are gathered there, one parameter
    at a time, in a whole model on the CPU.

    Parameters
    ----------
    model : torch.nn.Module
        As :func:`diffscope.load` takes it; inside ``torch.compile``, PEFT, accelerate or DDP as well.
    prompts : as for :meth:`diffscope.Scope.capture`
        A text, a list of texts, or token ids (prompt, token).
    statistics : sequence of str
        Of docs/statistics.md. One that compares A1 and A2 is logged beside the same with the A2 of another head,
        ``NAME_control``.
    every : int
        Steps between measurements.
    steps : collection of int
        Further steps to measure at, by default early ones: 0, 1, 2, 5, 10, 20 and 50.
    queries : QuerySample or int, optional
        How many queries of each prompt to measure; None for all.
    spans : as for :meth:`diffscope.Scope.capture`
        With a span ``answer``, its mass is measured too, unless `statistics` are given.
    answers : str or sequence of str, optional
        What continues each prompt. Its log-odds are measured too, as :meth:`diffscope.Scope.answer` has them.
    distractors : as for :meth:`diffscope.Scope.answer`
        Other answers that one might give; without any, the log-odds are against all else.
    path : path-like, optional
        A folder to keep the numbers of every head in, which :func:`diffscope.open` reads; a training that was killed goes on in
        it. By default nothing is written.
    per_head : bool
        Whether to name every head in what is logged, in place of each layer's least and largest.
    budget : float, optional
        The share of the training's time that measuring may take: beyond it, `every` is stretched. None for no limit.
    gradients : bool
        Whether to compare the gradients of the two branches as well, ``gradient_ratio``: the norm of what the training's own
        backward pass gives the query and key weights of A1, over that of A2. No further pass is made.
    maps : sequence of (int, int)
        Heads, as (layer, head), whose A1, A2 and D on the first prompt are kept in the folder, for the slider of the dashboard,
        and handed to TensorBoard and W&B as images.
    maps_every : int
        Maps are kept at step 0, and then every `maps_every` × `every` steps, if the step is measured.
    strict : bool
        Whether to raise what fails, in place of a warning.
    tokenizer : PreTrainedTokenizerBase, optional
        Needed for prompts of text.

    Raises
    ------
    DiffscopeError
        There is no such statistic, or one has no average; a number is out of its range; or `path` holds something else.
    UnsupportedModel, PromptError, SpanError
        As of :func:`diffscope.load` and :meth:`diffscope.Scope.capture`.

    Examples
    --------
    >>> import diffscope
    >>> scope = diffscope.load("mini-diff")
    >>> monitor = diffscope.monitor(scope.model, [[5, 17, 3, 99, 17]], statistics=["lambda"], every=10)
    >>> round(monitor.step(0)["diffscope/lambda/layer_0/mean"], 2)
    1.02
    """

    def __init__(
        self,
        model: nn.Module,
        prompts: Any,
        statistics: Sequence[str] | str | None = None,
        *,
        every: int = 100,
        steps: Collection[int] = EARLY,
        queries: QuerySample | int | None = 64,
        spans: Spans = None,
        answers: str | Sequence[str] | None = None,
        distractors: Sequence[str] | Sequence[Sequence[str]] = (),
        path: str | os.PathLike | None = None,
        per_head: bool = False,
        budget: float | None = 0.02,
        gradients: bool = False,
        maps: Sequence[Head] = (),
        maps_every: int = 10,
        strict: bool = False,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        whole_number(every, 1, math.inf, "every= takes whole numbers from 1")
        whole_number(maps_every, 1, math.inf, "maps_every= takes whole numbers from 1")
        check_several("steps", steps, [100, 1000])
        for step in steps:
            whole_number(step, 0, math.inf, "steps= takes whole numbers from 0")
        if budget is not None and not (isinstance(budget, Real) and budget > 0):
            raise DiffscopeError(f"a budget is a share of the training's time above 0, such as 0.02, and not {budget!r}")
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise DiffscopeError(f"what is watched is the model that is trained, not a {kind}; of a scope give scope.model")
        self._shards = Shards(model, _first_process()) if is_sharded(model) else None
        self.scope = load(self._shards.whole if self._shards else model, tokenizer)
        if queries is not None and not isinstance(queries, QuerySample):
            queries = QuerySample(whole_number(queries, 2, math.inf, "queries= takes whole numbers from 2"))
        self.queries = queries
        self.schedule = Schedule(every, frozenset(map(int, steps)), budget)
        self.heads = _heads(maps, self.scope)
        self.maps_every = maps_every
        self.images: dict[str, np.ndarray] = {}  # that the last step drew, by flat names
        self.per_head = per_head
        self.strict = strict
        self.rules: list[Rule] = default_rules()
        self.alerts: list[Alert] = []
        inputs = self.scope.prepare(prompts, spans)
        self._batches = list(by_length(inputs))
        spanned = ["span_mass"] if any("answer" in prompt.spans for prompt in inputs.prompts) else []
        self.statistics = _averageable([*USUAL, *spanned] if statistics is None else statistics)
        self._questions = None if answers is None else encode_questions(self.scope, inputs, answers, distractors)
        self.gradients = gradients
        self._gradients: BranchGradients | None = None  # in the first process
        if gradients:
            self._watch_gradients()
        self._warned: set[str] = set()  # the reasons of failures that were told
        self._told_cost = False
        self._first: int | None = None  # the step at which this process began to watch
        self._step: int | None = None  # the last one that was measured
        self._template: xr.Dataset | None = None  # the last measurement, which says what one has
        self._not_finite = False  # whether the last measurement had numbers that are not finite
        self.record: Record | None = None
        if path is not None:
            self.keep_in(path)

    def __repr__(self) -> str:
        prompts = sum(len(inputs.prompts) for inputs in self._batches)
        where = "" if self.record is None else f", in {self.record.path}"
        return f"<Monitor of {self.scope.name}: {prompts} prompts, every {self.schedule.stride} steps{where}>"

    def _watch_gradients(self) -> None:
        """Read the gradients of the branches from now on, in the first process."""
        if self._shards:
            raise DiffscopeError("the gradients of a sharded model are in parts, which are not compared; leave gradients= out")
        if _first_process():
            self._gradients = BranchGradients(self.scope, self._batches[0])

    def keep_in(self, path: str | os.PathLike) -> None:
        """Keep what is measured from now on in a folder, which only the first process writes.

        Raises
        ------
        DiffscopeError
            It holds something else, or measurements of other prompts, statistics or another model.
        """
        if _first_process():
            self.record = Record(path, self._about())

    def alert(
        self,
        statistic: str,
        *,
        above: float | None = None,
        below: float | None = None,
        times: float | None = None,
        within: int | None = None,
        **labels: str | float,
    ) -> None:
        """Add a rule: whenever a head, or layer, of a statistic leaves these bounds, this is told on stderr, logged and kept.

        Parameters
        ----------
        statistic : str
            One that is measured.
        above, below : float, optional
            Bounds of the value, averaged over queries and prompts.
        times, within : float and int, optional
            The value may not become so many times as large within so many steps; with `above`, if it is above that as well.
        **labels : str or number
            Of further dimensions, such as ``map="D"`` or ``k=1``. Without them each label is held to the rule; of λ it is the one
            in use.

        Raises
        ------
        DiffscopeError
            The statistic is not measured, has no such label, or there is no bound.
        """
        further = {LARGEST: "logit_outliers" in self.statistics, RATIO: self.gradients}
        names = [*self.statistics, *(name for name, measured_too in further.items() if measured_too)]
        if statistic not in names:
            raise DiffscopeError(f"{statistic!r} is not measured here, so no alert can be of it; there are {', '.join(names)}")
        spans = list(self._batches[0].prompts[0].key_sets())
        dims = {LARGEST: ("branch",), RATIO: ()}[statistic] if statistic in further else STATISTICS[statistic].dims
        known = {dim: some for dim, some in {**LABELS, "span": spans, "branch": BRANCHES}.items() if dim in dims}
        for dim, label in labels.items():
            if label not in known.get(dim, ()):
                choices = ", ".join(f"{name}={next(iter(some))!r}" for name, some in known.items()) or "none"
                raise DiffscopeError(f"{statistic} has no label {dim}={label!r}; it has labels such as {choices}")
        chosen: dict[str, str | float] = {"lambda_value": "used", **labels} if statistic == "lambda" else labels
        self.rules.append(Rule(statistic, chosen, above, below, times, within))

    def step(self, step: int, **values: float) -> dict[str, float]:
        """Measure if it is time to, and return what was measured by flat names.

        Call it after each step of the optimizer, in every process.

        Parameters
        ----------
        step : int
            The number of the step.
        **values : float
            Numbers of the training to keep beside the measurements, such as ``loss``.

        Returns
        -------
        dict of str to float
            Such as ``diffscope/lambda/layer_3/mean``, a layer's average over heads and prompts, ``/min`` and ``/max`` of its
            heads or, if asked for, ``/head_0`` and so on. Empty at steps that are not measured. ``diffscope/alerts`` counts the
            bounds that were left. After a step whose maps were drawn, ``monitor.images`` has them, by flat names.
        """
        self.images = {}
        if self._first is None:
            self._first = step
        if values:
            _check_names(values, self._questions is not None)
        if step == self._step or not self.schedule.due(step) or not (self._shards or _first_process()):
            return {}
        began = self._now()
        try:
            if self._shards:
                self._shards.gather()
            return self._measure(int(step), began, values) if _first_process() else {}
        except Exception as error:
            if self.strict:
                raise
            return self._fail(step, error, values)
        finally:
            self._step = step
            if self._shards:
                self.schedule.stride = agreed(self.schedule.stride)

    @contextmanager
    def sending(self, step: int) -> Iterator[None]:
        """Hand a step to trackers: what one of them raises is warned of and ends no training, unless the monitor is strict."""
        try:
            yield
        except Exception as error:
            if self.strict:
                raise
            self.warn(f"a tracker did not take step {step}: {type(error).__name__}: {first_line(error)}", "tracker")

    def callback(self) -> Any:
        """Return a callback for ``transformers.Trainer``, which sends what is measured to whatever ``report_to`` names.

        Returns
        -------
        transformers.TrainerCallback
            Without a `path`, it keeps the numbers in the folder ``monitor`` of the Trainer's ``output_dir``.
        """
        from diffscope.monitoring.trainer_callback import MonitorCallback

        return MonitorCallback(self)

    def lightning_callback(self) -> Any:
        """Return a callback for Lightning's Trainer, which sends what is measured to its loggers.

        Returns
        -------
        lightning.pytorch.Callback

        Raises
        ------
        MissingExtra
            Lightning is not installed.
        """
        from diffscope.monitoring.lightning_callback import callback_of

        return callback_of(self)

    def attach(self, model: nn.Module) -> None:
        """Watch another model of the same kind from now on: a trainer may have made one anew."""
        if is_sharded(model):
            self._shards = Shards(model, _first_process())
            model = self._shards.whole
        if unwrapped(model) is not self.scope.model:
            self.scope = load(model, self.scope.tokenizer, family=self.scope.family)
            if self.gradients:
                self._watch_gradients()

    def _measure(self, step: int, began: float, values: dict[str, float]) -> dict[str, float]:
        weights = fingerprint(self.scope.model)
        repeated = self._kept(step, weights)
        if self._step is None:
            self._recall(step)
        with undisturbed(self.scope.model):
            per_prompt = measured(self.scope, self._batches, self.statistics, self.queries)
            drawn = self._drawn(step)
            answered = {} if self._questions is None else averages(self.scope, self._questions)
        means, by_head = average(per_prompt, ["head", "prompt"]), average(per_prompt, "prompt")
        if self._gradients:
            ratio = self._gradient_ratio(by_head)
            means, by_head = means.assign({RATIO: averaged(ratio, ["head"]).values}), by_head.assign({RATIO: ratio})
        found = self._found(step, by_head)
        logged = {**flat(means, by_head, self.per_head), **{f"{PREFIX}/{name}": value for name, value in answered.items()}}
        logged[f"{PREFIX}/alerts"] = float(len(found))
        self._template = by_head
        if self.record is not None and not repeated:
            numbers = _plain(values) | answered | {"seconds": self._now() - began}
            self._keep(step, by_head, numbers, {WEIGHTS: weights, ALERTS: json.dumps(found), LOGGED: json.dumps(logged)}, drawn)
        self.schedule.note(step, began, self._now())
        self._tell_cost()
        return logged

    def _gradient_ratio(self, by_head: xr.Dataset) -> xr.DataArray:
        """Return the ratio of the branches' gradients by layer and head, and say once why some are not known."""
        assert self._gradients is not None
        reasons, stepped = dict(self._gradients.reasons), self._gradients.stepped
        ratio = self._gradients.take(by_head["layer"].values.tolist(), by_head.sizes["head"])
        if self._step is not None:
            for layer in ratio["layer"].values[ratio.isnull().all("head").values].tolist():
                unknown = "the gradient of A2 is 0 (as when λ is 0) or not finite"
                untrained = "no optimizer of torch.optim has stepped with them, or they are frozen"
                reasons.setdefault(layer, unknown if layer in stepped else untrained)
        for reason in dict.fromkeys(reasons.values()):
            where = numbered("layer", [layer for layer in reasons if reasons[layer] == reason])
            self.warn(f"the gradients of the branches of {where} are not known: {reason}", f"gradients: {reason}")
        return ratio

    def _recall(self, step: int) -> None:
        """Bring the rules to where an earlier process of this training left them, so that they say nothing twice."""
        before = [] if self.record is None else [kept for kept in self.record.steps if kept < step]
        reach = max((rule.within or 0 for rule in self.rules), default=0)
        for kept in before:
            if kept >= step - reach or kept == before[-1]:
                with suppress(CorruptFile):  # whoever opens the folder is told which file is damaged
                    table = self.record.table(kept)  # type: ignore[union-attr]
                    for rule in self.rules:
                        rule.check(kept, table)
                    self._template = table[[name for name, values in table.items() if values.ndim]]
                    unmeasured = bool(table["seconds"].isnull())
                    self._not_finite = unmeasured or bool(not_finite(kept, self._template))

    def _drawn(self, step: int) -> Capture | None:
        """Draw the maps that were asked for, and return what they are of; None at most steps."""
        if not self.heads or step % (self.schedule.every * self.maps_every):
            return None
        try:
            maps = captured(self.scope, self._batches[0], {layer for layer, _ in self.heads})
            self.images = images(maps, self.heads)
        except DiffscopeError as error:  # of a head that is not there: the numbers are measured all the same
            if self.strict:
                raise
            self.warn(f"maps are not kept: {error}", "maps")
            return None
        return maps

    def _keep(
        self, step: int, by_head: xr.Dataset, numbers: Mapping[str, float], about: Mapping[str, str], maps: Capture | None = None
    ) -> None:
        """Write the measurements of a step; trackers get them even if they cannot be written."""
        assert self.record is not None
        kept = by_head.assign({name: ((), value) for name, value in numbers.items()})
        kept.attrs = {name: value for name, value in kept.attrs.items() if isinstance(value, str)} | dict(about)
        try:
            self.record.add(step, kept, maps)
        except OSError as error:
            if self.strict:
                raise
            self.warn(f"step {step} could not be kept in {self.record.path}: {first_line(error)}", "kept")

    def _kept(self, step: int, weights: str) -> bool:
        """Return whether not to keep this step, as it is there already; later steps of another course are moved away."""
        if self.record is None:
            return False
        if not self._may_write(self.record):
            return True
        before = self.record.weights(step)
        if before == weights:
            return True
        seen = self._first if self._step is None else self._step  # what is kept after it is of an earlier process
        begins = step if seen is None else min(step, seen + 1)
        moved = []
        # Another course of the training begins here, is seen here first, or has gone past steps that nothing can be said of.
        if self._step is None or before is not None or any(begins <= kept < step for kept in self.record.steps):
            moved = self.record.replace_from(begins)
        if moved:
            steps = f"step {moved[0]}" if len(moved) == 1 else f"steps {moved[0]} to {moved[-1]}"
            of = "of another course of this training, or cannot be told from one"
            self.warn(f"{steps} in {self.record.path}: {of}; moved to a folder there")
        return False

    def _may_write(self, record: Record) -> bool:
        """Return whether no other process writes the folder; the next measurement asks again."""
        if record.claimed():
            return True
        told = f"another process keeps its measurements in {record.path}"
        if self.strict:
            raise DiffscopeError(f"{told}; give another path, or end it")
        self.warn(f"{told}, and as long as it does nothing else is kept there; give another path, or end it")
        return False

    def _found(self, step: int, by_head: xr.Dataset) -> list[Alert]:
        """Return the alerts of a step, told on stderr and remembered."""
        found = [alert for rule in self.rules for alert in rule.check(step, by_head)]
        broken = not_finite(step, by_head)
        if not self._not_finite:
            found += broken
        self._not_finite = bool(broken)
        self._raise_alarm(found)
        return found

    def _raise_alarm(self, found: Sequence[Alert]) -> None:
        """Say alerts on stderr, of each rule the first few, and remember all."""
        for _, group in groupby(found, key=lambda alert: alert.rule):
            alerts = list(group)
            for alert in alerts[:SHOWN]:
                _say(f"step {alert.step}: {alert.text}")
            if len(alerts) > SHOWN:
                _say(f"step {alerts[0].step}: and so {len(alerts) - SHOWN} more")
        self.alerts += found

    def _fail(self, step: int, error: Exception, values: Mapping[str, float]) -> dict[str, float]:
        """Say why a step could not be measured, and go on even if that cannot be said; return what trackers get."""
        with suppress(Exception):  # such as a warning that is an error here, or a device that no longer answers
            broken = self._broken(error)
            told = [Alert(step, NOT_FINITE, broken)] if broken and not self._not_finite else []
            if broken:
                self._not_finite = True
                self._raise_alarm(told)
                self._keep_broken(step, told, values)
            with suppress(DiffscopeWarning):
                failed = f"step {step} could not be measured, and the training goes on: {type(error).__name__}: {error}"
                self.warn(failed, str(type(error)))
            return {f"{PREFIX}/alerts": float(len(told))} if broken else {}
        return {}

    def _broken(self, error: Exception) -> str:
        """Return what is not finite in a model that could not be measured; empty if nothing is known to be."""
        if not finite(self.scope.model):
            return "the model has weights that are not finite"
        if isinstance(error, FidelityError) and "not finite" in str(error):
            return "the model computes values that are not finite"
        return ""

    def _keep_broken(self, step: int, told: Sequence[Alert], values: Mapping[str, float]) -> None:
        """Keep a step of a broken model, whose every number is NaN, with its alert: whoever follows the folder sees it."""
        if self.record is None or self._template is None or not self._may_write(self.record):
            return
        nothing = {name: value * np.nan for name, value in self._template.items()}
        about = {WEIGHTS: fingerprint(self.scope.model), ALERTS: json.dumps(told)}
        about[LOGGED] = json.dumps({f"{PREFIX}/alerts": float(len(told))})
        if self.record.weights(step) != about[WEIGHTS]:
            self._keep(step, self._template.assign(nothing), _plain(values) | {"seconds": math.nan}, about)

    def warn(self, text: str, reason: str = "") -> None:
        """Warn of something, once for each text or reason."""
        if (reason or text) not in self._warned:
            self._warned.add(reason or text)
            _say(text)
            warnings.warn(f"diffscope monitor: {text}", DiffscopeWarning, stacklevel=4)

    def _tell_cost(self) -> None:
        """Say what measuring costs, once, as soon as the time of a step is known."""
        share = self.schedule.share
        if self._told_cost or not np.isfinite(share):
            return
        self._told_cost = True
        seconds, every = self.schedule.seconds, f"every {self.schedule.stride} steps"
        if self.schedule.stride > self.schedule.every:
            every += f" (stretched from {self.schedule.every} to keep its budget)"
        of = f"{100 * share:.2g} % of" if share < 1 else f"{share:,.1f} times"
        _say(f"a measurement takes {short_duration(seconds)}; {every} that is {of} the training's time")

    def _now(self) -> float:
        """Return the time in seconds, when the device of the training has done what it was given."""
        trained = self._shards.model if self._shards else self.scope.model
        if any(parameter.is_cuda for parameter in trained.parameters()):
            torch.cuda.synchronize()
        return time.perf_counter()

    def _about(self) -> dict[str, Any]:
        """Return what tells the measurements of this monitor from those of another."""
        prompts = [
            [list(prompt.ids), {name: list(at) for name, at in prompt.spans.items()}]
            for inputs in self._batches
            for prompt in inputs.prompts
        ]
        return {
            "model": type(self.scope.model).__name__,
            "family": self.scope.family.name,
            "statistics": list(self.statistics),
            "queries": repr(self.queries),
            "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
            **({} if self._questions is None else {"answers": digest(self._questions)}),
            **({"gradients": "of both branches"} if self.gradients else {}),
        }


monitor = Monitor


def _check_names(values: Mapping[str, float], answers: bool) -> None:
    """Refuse numbers of the training that are called as what is measured."""
    measured_names = {*STATISTICS, *LABELS, "layer", "head", "step", "seconds", LARGEST, RATIO, *(ANSWERED if answers else ())}
    if clash := sorted({*values} & measured_names):
        raise DiffscopeError(f"{', '.join(clash)} names what a monitor measures; give that number another name")


def _plain(values: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers of the training as floats: some are tensors, on a device or with a graph behind them."""
    return {name: float(torch.as_tensor(value).item()) for name, value in values.items()}


def _averageable(statistics: Sequence[str] | str) -> list[str]:
    """Return the names of statistics, which have to have an average."""
    chosen = select(statistics)
    if without := [each.name for each in chosen if each.averaged == "not"]:
        raise DiffscopeError(
            f"{', '.join(without)} has no average over queries and prompts, so it cannot be monitored; leave it out"
        )
    if not chosen:
        raise DiffscopeError("a monitor measures at least one statistic; leave statistics= out for the usual ones")
    return [each.name for each in chosen]


def _heads(maps: Sequence[Head], scope: Scope) -> list[Head]:
    """Return the heads whose maps are kept, of layers that the model has."""
    try:
        heads = [(int(layer), int(head)) for layer, head in maps]
    except (TypeError, ValueError):
        raise DiffscopeError(f"maps are of heads, each as (layer, head), such as [(1, 0)], and not {maps!r}") from None
    for layer, _ in heads:
        check_index("layer", layer, scope.layer_numbers)
    return heads


def _first_process() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _say(line: str) -> None:
    sys.stderr.write(f"diffscope monitor: {line}\n")
