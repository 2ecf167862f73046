"""How well a model answers along its training: the same prompts, put to every checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.lab.accuracy import Standing, standing
from diffscope.lab.scoring import draw, score
from diffscope.scope import Scope, load
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.trained_on import template_of

SEED = 60_000  # of the prompts
NEEDLES = 4


def answers_along(
    names: Mapping[int, str],
    prompts: int = 50,
    length: int = 160,
    *,
    needles: int = NEEDLES,
    template: str | None = None,
    seed: int = SEED,
    opener: Callable[[str], Scope] = load,
    progress: Callable[[int, int, str], None] | None = None,
) -> xr.Dataset:
    """Exact answers and log-odds of retrieval prompts over the steps of a training.

    Parameters
    ----------
    names : mapping of int to str
        By step what each checkpoint is loaded by, as :func:`diffscope.lab.training.checkpoints.checkpoints_of` gives them.
    prompts, length, needles : int
        How many prompts, tokens of each, and needle sentences in each, that of the question included.
    template : str, optional
        The needle sentence; by default the one that the models were trained on.
    seed : int
        Of the prompts, which are drawn once and are the same for all checkpoints.
    opener : callable
        Opens a checkpoint by its name.
    progress : callable, optional
        Called with (checkpoints done, checkpoints in all, words).

    Returns
    -------
    xarray.Dataset (step,)
        ``exact``, the share of exact answers, with ``exact_low`` and ``exact_high``, its 95 % interval (Wilson), and
        ``standard_error`` (binomial); ``log_odds`` of the answer against all distractors in nats, mean over prompts, with
        ``log_odds_low`` and ``log_odds_high``. Attributes ``prompts``, ``length``, ``needles``, ``chance`` (the share that
        copying any number would give) and ``sentence``.

    Raises
    ------
    DiffscopeError
        There is no checkpoint.
    PromptError
        The prompts cannot be drawn or run.
    """
    if not names:
        raise DiffscopeError("there is no checkpoint to be asked")
    drawn = None
    standings = []
    for number, name in enumerate(names.values()):
        if progress:
            progress(number, len(names), f"asking {name}")
        scope = opener(name)
        sentence = template or template_of(scope.model)
        drawn = drawn or draw(Retrieval(scope.tokenizer, held_out=True, template=sentence), prompts, length, needles, seed)
        standings.append(standing(scope, drawn))
    return _dataset(list(names), standings).assign_attrs(length=length, needles=needles)


def _dataset(steps: Sequence[int], standings: Sequence[Standing]) -> xr.Dataset:
    intervals = np.array([score(each.right)["interval"] for each in standings])
    exact = np.array([each.exact for each in standings])
    count = standings[0].prompts
    columns = {
        "exact": (exact, "exact answers", "1"),
        "exact_low": (intervals[:, 0], "exact answers, lower end of the 95 % interval", "1"),
        "exact_high": (intervals[:, 1], "exact answers, upper end of the 95 % interval", "1"),
        "standard_error": (np.sqrt(exact * (1 - exact) / count), "standard error of the share of exact answers", "1"),
        "log_odds": (np.array([each.log_odds for each in standings]), "log-odds of the answer", "nats"),
        "log_odds_low": (np.array([each.log_odds_low for each in standings]), "log-odds, lower end of the 95 % interval", "nats"),
        "log_odds_high": (
            np.array([each.log_odds_high for each in standings]),
            "log-odds, upper end of the 95 % interval",
            "nats",
        ),
    }
    variables = {name: ("step", values, {"long_name": title, "units": units}) for name, (values, title, units) in columns.items()}
    dataset = xr.Dataset(variables, {"step": ("step", list(steps), {"long_name": "step of training", "units": "steps"})})
    about = {"prompts": count, "chance": standings[0].chance, "blind": standings[0].blind}
    return dataset.assign_attrs(about, sentence=_sentence(dataset, about))


def _sentence(dataset: xr.Dataset, about: Mapping[str, float]) -> str:
    """The shares at the first and the last step, and how sure they are."""
    ends = [dataset.isel(step=at) for at in ((0, -1) if dataset.sizes["step"] > 1 else (0,))]
    shares = [
        f"{100 * float(end['exact']):.0f} % at step {int(end['step'])} (95 % {100 * float(end['exact_low']):.0f} to "
        f"{100 * float(end['exact_high']):.0f})"
        for end in ends
    ]
    return (
        f"Of the same {about['prompts']} prompts at every step, exact answers are {' and '.join(shares)}; "
        f"copying any number of the text would give {100 * about['chance']:.0f} %."
    )
