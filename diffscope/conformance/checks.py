"""Prove each layer on prompts that can fail it, and compare the model with the design of its family."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from diffscope.conformance.behaviour import ORDERED, STEPS, check_cache, check_observation, check_order, check_second_map
from diffscope.conformance.description import differences, facts
from diffscope.conformance.design import check_design
from diffscope.conformance.prompts import LENGTH, SHORT, Prompts, check_length, declared_window, long_enough
from diffscope.conformance.rebuilding import check_fidelity
from diffscope.conformance.report import VERDICTS, Report
from diffscope.conformance.run import CheckRun, Progress, count_runs
from diffscope.errors import DiffscopeError
from diffscope.families.coverage import unread_layers
from diffscope.scope import Scope, load
from diffscope.scope.images import ImageModel
from diffscope.scope.runners import LanguageModel


def check(
    model: Scope | str | os.PathLike | nn.Module,
    tokenizer: Any = None,
    *,
    length: int = LENGTH,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Check how a model attends against what its family does by design, on random prompts.

    Parameters
    ----------
    model : Scope, str, path or torch.nn.Module
        An opened model, or one to open as :func:`diffscope.load` does; open it first to choose a device, a dtype or a family.
    tokenizer : PreTrainedTokenizerBase, optional
        As for :func:`diffscope.load`; without effect for an opened model.
    length : int
        Tokens of the long prompt: at most 4,096, and at most the positions of the model. A prompt no longer than the attention
        window is lengthened beyond it. The default is shortened to the positions of the model.
    seed : int
        Seed of the random prompts.
    progress : callable, optional
        Called with (runs of the model begun, runs in all, words). Layers that are not differential take fewer runs.

    Returns
    -------
    Report

    Raises
    ------
    DiffscopeError
        The model is under edits, could not be run on any prompt, or takes no prompt of that length; also the errors of
        :func:`diffscope.load`.
    """
    scope = model if isinstance(model, Scope) else load(model, tokenizer)
    if scope.edits:
        raise DiffscopeError("a model is checked as it is; leave the edits that are on")
    check_length(scope, length)
    modules = scope.family.modules(scope.model)
    kinds = sorted({type(module).__name__ for module in modules})
    report = Report(
        scope.name,
        scope.family.name,
        f"{len(modules)} attention modules of class {', '.join(kinds)}: {scope.family.description}",
        scope.runner.implementation(scope.family),
        str(scope.runner.dtype).removeprefix("torch."),
        scope.family.tried_on,
    )
    window = declared_window(scope)
    prompts = Prompts(scope, seed, long_enough(scope, length, window))
    run = CheckRun(scope, report, prompts, count_runs(progress, len(planned_runs(scope, length))))
    observed = check_fidelity(run, window)
    if unread := unread_layers(scope.model, scope.family.layers(scope.model)):
        report.add("warn", "layers", unread)
    conventions = [scope.family.convention_of(each.module) for each in observed]
    report.layers = [facts(each.layer, convention) for each, convention in zip(observed, conventions)]
    check_design(run, observed)
    if _takes_ids(scope):
        check_order(run)
    check_second_map(run, observed)
    if isinstance(scope.runner, LanguageModel):
        if _takes_ids(scope):
            check_cache(run)
        check_observation(run)
    report.findings.sort(key=lambda finding: VERDICTS.index(finding.verdict))
    report.differences = differences([each.layer for each in observed], conventions)
    return report


def _takes_ids(scope: Scope) -> bool:
    """Return whether a prompt is token ids, of which one can be changed or left for later."""
    return not isinstance(scope.runner, ImageModel) and not scope.runner.two_sided


def planned_runs(scope: Scope, length: int = LENGTH) -> list[int]:
    """Return the tokens of every run of a model that :func:`check` makes, if all of its layers are differential."""
    long = long_enough(scope, length, declared_window(scope))
    fidelity = [long, long + max(2, long * 2 // 3)]
    second_map = 2 * scope.n_layers * [min(SHORT, long)]
    if _takes_ids(scope):
        fidelity.append(ORDERED * (ORDERED + 1))
    if not isinstance(scope.runner, LanguageModel):
        return fidelity + second_map
    if not _takes_ids(scope):
        return [*fidelity, *second_map, *(2 * [min(SHORT, long)])]
    steps = min(long // 2, STEPS)
    return [*fidelity, *second_map, long, long - steps, *(steps * [1]), *(2 * [min(SHORT, long)])]
