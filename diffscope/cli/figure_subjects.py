"""What each figure is of: how the command line gets a capture, a comparison, a reading or a file for it."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import diffscope
from diffscope.cli.options import check_model, read_capture, read_prompt, read_scope, read_spans
from diffscope.cli.output import counting, note, working
from diffscope.errors import DiffscopeError, PromptError

FACTORS = (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5)  # of λ
OTHERS = 6  # prompts beside the one that is looked at


@dataclass
class Source:
    """What was said of models and prompts, each as its option takes it."""

    saved: Path | None
    model: str | None
    baseline: str | None
    prompt: str | None
    prompt_file: Path | None
    span: list[str] | None
    answer: str | None
    distractor: list[str] | None
    prompts: str
    length: list[int] | None
    device: str | None
    dtype: str | None
    of_kind: str | None = None
    decoder_prompt: str | None = None
    key_span: list[str] | None = None
    chosen: dict = field(default_factory=dict)  # of this figure alone, by option

    def check(self, kind: str, read: str) -> None:
        """Raise if an option was given that this figure ignores; `read` names those that it reads."""
        known = {*read.split(), "chosen"}
        for name in [each.name for each in fields(self)]:
            if name not in known and getattr(self, name):
                option = "PATH" if name == "saved" else f"--{name.replace('_', '-')}"
                raise DiffscopeError(f"the figure {kind} does not read {option}; leave it out")

    def scopes(self) -> dict:
        """Return the models by name: the first, and the baseline if there is one."""
        check_model(self.model)
        if self.baseline == self.model:
            raise DiffscopeError(f"--baseline is --model, {self.model}; give another one, or leave it out")
        names = [self.model] if self.baseline is None else [self.model, self.baseline]
        return {name: read_scope(name, self.device, self.dtype) for name in names}

    def of_one(self):
        """Return the only model of a figure that takes one."""
        return next(iter(self.scopes().values()))

    def given(self) -> tuple:
        """Return the prompt and its spans."""
        prompt = read_prompt(self.prompt, self.prompt_file)
        return prompt, read_spans(self.span or [], prompt=prompt)

    def file(self, kind: str):
        """Open the file or folder that is drawn."""
        if self.saved is None:
            raise DiffscopeError(f"the figure {kind} is of a file or folder: diffscope figure PATH --kind {kind} --out FILE")
        return diffscope.open(self.saved)


def capture(source: Source, kind: str):
    """Return one capture, saved or taken now; of two models their comparison."""
    if source.baseline is None:
        given = (source.saved, source.model, source.prompt, source.prompt_file, source.span, source.device, source.dtype)
        return read_capture(*given, source.of_kind, decoder_prompt=source.decoder_prompt, key_span=source.key_span)
    if source.saved is not None:
        raise DiffscopeError(f"{source.saved} is of one model; leave --baseline out, or the file")
    if source.of_kind or source.decoder_prompt or source.key_span:
        raise DiffscopeError(
            "two models are compared with all their layers on one prompt; leave --of-kind, --decoder-prompt and --key-span out, "
            "or --baseline"
        )
    prompt, spans = source.given()
    scopes = source.scopes()
    with working("capturing"):
        return diffscope.compare(*scopes.values(), prompt, spans=spans)


def depths(source: Source, kind: str) -> dict:
    """Measure retrieval by length and depth, of each model."""
    from diffscope.readings import depths as read
    from diffscope.tasks import Retrieval

    count = _count(source.prompts, 5)
    readings = {}
    scopes = source.scopes()
    template = _template(scopes)
    for name, scope in scopes.items():
        task = Retrieval(scope.tokenizer, template=template)
        with counting(name) as progress:
            readings[name] = read(scope, source.length or None, prompts=count, task=task, progress=progress)
    return readings


def composition(source: Source, kind: str):
    """Measure what A2 is made of, fitted to other prompts."""
    from diffscope import readings

    scope = source.of_one()
    prompt, spans = source.given()
    with working("capturing"):
        cap = scope.capture(prompt, spans=spans)
        return readings.composition(cap, readings.other_prompts(scope, cap, OTHERS))


def branches(source: Source, kind: str):
    """Measure what each branch of each head adds to the answer's logit."""
    from diffscope import readings

    if source.answer is None:
        raise PromptError("what a head adds is asked of an answer; give --answer TEXT, and --distractor TEXT for each rival")
    scope = source.of_one()
    prompt, spans = source.given()
    with working("capturing"):
        asked = readings.question(scope, scope.capture(prompt, spans=spans), source.answer, source.distractor or ())
        return readings.branches(scope, asked, readings.synthetic_prompts(scope, len(asked.ids), OTHERS))


def patching(source: Source, kind: str):
    """Patch every head with what it is on another prompt, and measure how the answer changes."""
    from diffscope import readings

    other = source.chosen["source"]
    if other is None:
        raise PromptError("heads are patched with what they are on another prompt, of as many tokens; give --source TEXT")
    answers = source.distractor or [None]
    if len(answers) > 1:
        raise PromptError("the other prompt has one answer; give --distractor once")
    scope = source.of_one()
    with counting("patching") as progress:
        return readings.patched_heads(scope, source.given()[0], other, source.answer, answers[0], progress=progress)


def score_parts(source: Source, kind: str):
    """Attribute the score of one cell to pairs of earlier parts."""
    from diffscope.attribution import score_attribution

    cell = {"query": -1, "map": "A1"} | {name: value for name, value in source.chosen.items() if value is not None}
    if missing := [f"--{name}" for name in ("layer", "head", "key") if name not in cell]:
        raise PromptError(f"a score is of one cell: of a head, a query and a key; give {', '.join(missing)}")
    scope = source.of_one()
    with working("attributing"):
        return score_attribution(scope, source.given()[0], **cell)


def signal_to_noise(source: Source, kind: str) -> dict:
    """Measure what the subtraction of each model gains if the answer and the text around it are exchanged."""
    from diffscope import readings

    prompt, spans = source.given()
    read = {}
    for name, scope in source.scopes().items():
        with counting(name) as progress:
            read[name] = readings.signal_to_noise(scope, prompt, spans=spans, answers=source.distractor, progress=progress)
    return read


def checkpoints(source: Source, kind: str) -> dict:
    """Capture one prompt at every checkpoint that was kept, and at the end."""
    from diffscope.lab.training.run import checkpoints_of

    scope = source.of_one()
    prompt, spans = source.given()
    names = checkpoints_of(source.model).names
    if not names:
        raise DiffscopeError(f"{scope.name} has no checkpoints; those of a training of diffscope train are in its folder")
    captures = {}
    with counting("capturing") as progress:
        for number, (step, name) in enumerate(names.items()):
            progress(number, len(names))
            captures[step] = read_scope(name, source.device, source.dtype).capture(prompt, spans=spans)
    return captures


def interventions(source: Source, kind: str) -> dict:
    """Measure answers and losses of each model with λ multiplied."""
    from diffscope import edits, readings

    tried = {factor: edits.scale_lambda(factor) for factor in FACTORS}
    return _of_prompts(
        source,
        lambda scope, prompts, progress: readings.interventions(scope, prompts, tried, along="factor of λ", progress=progress),
    )


def ablations(source: Source, kind: str) -> dict:
    """Measure what each head of each model is worth."""
    from diffscope import readings

    return _of_prompts(source, lambda scope, prompts, progress: readings.ablations(scope, prompts, progress=progress))


def head_types(source: Source, kind: str) -> dict:
    """Measure of which types the heads of each model are."""
    from diffscope import readings

    return _of_prompts(source, lambda scope, prompts, progress: readings.head_types(scope, prompts, copying=False))


def _of_prompts(source: Source, read: Callable) -> dict:
    """Return a reading of each model on the prompts of --prompts."""
    from diffscope.tasks import Retrieval, read_prompts
    from diffscope.tasks.sampling import controlled

    told = {}
    scopes = source.scopes()
    template = _template(scopes)
    for name, scope in scopes.items():
        if source.prompts and not source.prompts.isdecimal():
            if source.length:
                raise PromptError(f"{source.prompts} has prompts of its own lengths; leave --length out")
            prompts = read_prompts(source.prompts)
        else:
            lengths = source.length or [128]
            if len(lengths) > 1:
                raise PromptError("these prompts are of one length; give --length once")
            prompts = controlled(Retrieval(scope.tokenizer, template=template), _count(source.prompts, 20), lengths[0], 3, 20_000)
        with counting(name) as progress:
            told[name] = read(scope, prompts, progress)
    return told


def _template(scopes: dict) -> str:
    """Return the sentence of the first model, in which all are asked; say which model was trained on another."""
    from diffscope.tasks.training_sentence import template_mismatches, template_of

    models = {name: scope.model for name, scope in scopes.items()}
    template = template_of(next(iter(models.values())))
    for remark in template_mismatches(template, models):
        note(remark)
    return template


def _count(prompts: str, usual: int) -> int:
    if not prompts:
        return usual
    if not prompts.isdecimal() or int(prompts) < 1:
        raise PromptError(f"--prompts {prompts} is no number of prompts, from 1")
    return int(prompts)


def study(source: Source, kind: str):
    """Open a study: a folder, its file, or a shipped one by name; by default the shipped one."""
    from diffscope.hypotheses.study import open_study

    kept = diffscope.open(source.saved) if source.saved is not None and source.saved.exists() else open_study(source.saved)
    if not hasattr(kept, "boards"):
        raise DiffscopeError(f"{source.saved} is no study; the figure {kind} is of a folder of diffscope study run")
    return kept


def board(source: Source, kind: str):
    """Return the first board of a study."""
    boards = study(source, kind).boards
    if not boards:
        raise DiffscopeError("this study has no board; run it anew with: diffscope study run --cohort FOLDER")
    return next(iter(boards.values()))


def of_file(source: Source, kind: str):
    """Open what lies in a file."""
    return source.file(kind)


def values(source: Source, kind: str):
    """Return one variable of measured statistics, with one label along each dimension of --where."""
    dataset = source.file(kind)
    names = [str(name) for name in getattr(dataset, "data_vars", ())]
    statistic = source.chosen["statistic"]
    if statistic not in names:
        raise DiffscopeError(f"{source.saved} has no {statistic!r}; give --statistic, one of {', '.join(names) or 'none'}")
    array = dataset[statistic]
    for dim, label in (source.chosen["where"] or {}).items():
        labels = list(map(str, array[dim].values)) if dim in array.dims else []
        if label not in labels:
            raise DiffscopeError(f"--where {dim}={label}: there is no such label; {dim} has {', '.join(labels) or 'none'}")
        array = array.isel({dim: labels.index(label)})
    return array


ONE_PROMPT = "model prompt prompt_file span device dtype"
FILE = "saved"
#: how the subject of each figure is got, where it is not a capture, and what it is got from
SUBJECTS: dict[str, tuple[Callable, str]] = {
    "ablation": (ablations, "model baseline prompts length device dtype"),
    "anatomy": (composition, ONE_PROMPT),
    "attribution": (branches, f"{ONE_PROMPT} answer distractor"),
    "board": (board, FILE),
    "by_depth": (depths, "model baseline prompts length device dtype"),
    "cells": (values, FILE),
    "checkpoints": (checkpoints, ONE_PROMPT),
    "cohort": (of_file, FILE),
    "curves": (values, FILE),
    "depth_by_length": (depths, "model baseline prompts length device dtype"),
    "head_types": (head_types, "model baseline prompts length device dtype"),
    "interventions": (interventions, "model baseline prompts length device dtype"),
    "patching": (patching, "model prompt prompt_file answer distractor device dtype"),
    "score_parts": (score_parts, "model prompt prompt_file device dtype"),
    "signal_to_noise": (signal_to_noise, f"{ONE_PROMPT} baseline distractor"),
    "strips": (values, FILE),
    "study": (study, FILE),
    "sweep": (of_file, FILE),
    "training": (checkpoints, ONE_PROMPT),
}
OF_A_CAPTURE = (capture, f"saved {ONE_PROMPT} baseline of_kind decoder_prompt key_span")


def subject(source: Source, kind: str):
    """Return what the figure of this name is drawn of.

    Raises DiffscopeError if an option was given that this figure does not use.
    """
    get, read = SUBJECTS.get(kind, OF_A_CAPTURE)
    source.check(kind, read)
    return get(source, kind)
