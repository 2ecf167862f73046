"""Training: how a head comes to do what it does, checkpoint by checkpoint, and when the model begins to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import blocks
import streamlit as st
from access import rules
from background import CancellableScope, Job, background
from cache import capture_once, checkpoints, once, opener, stamp_of
from catalog import bundled, display_name
from followed import FOLDER, show_followed
from messages import as_call, escape_markdown, show_errors
from selection import choose_head, choose_query, init_selection
from sidebar import Subject, as_code, choose_subject
from training_views import show_pictures, show_statistics, show_steps
from url_state import bound

from diffscope import figures, readings
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError, SpanError
from diffscope.figures.escaping import short_name
from diffscope.lab.accuracy import accuracy_over_training
from diffscope.lab.training.run import Checkpoints
from diffscope.numbers import head_name
from diffscope.readings.training import lambda_in_words
from diffscope.scope import Scope

CHECKPOINTS, MONITORED = "checkpoints of a model", "a training that is monitored"
EVENLY = "step of training (evenly spaced)"
STATISTICS = {
    "answer": "How much of what is left, |D|, goes to the answer, whatever the sign of a weight.",
    "lambda": "λ is by how much A₂ is taken off, as the model used it at each step.",
    "overlap": "What the two maps share on irrelevant tokens: 0 is nothing, 1 the same. What they share can cancel.",
    "cosine": "How alike the two maps are on irrelevant tokens, whatever their size.",
    "sink": "How much of |D| goes to the sink, the first token unless another is marked, whatever the sign of a weight.",
    "entropy": "How widely |D| is spread.",
}
FIRST = ("answer", "overlap")  # shown at once
state = st.session_state


def show_training(subject: Subject, kept_steps: Checkpoints) -> None:
    """The page of a model with checkpoints."""
    captures = capture_all(subject, kept_steps)
    last = captures[kept_steps.last]
    init_selection(last, replace(subject, model=kept_steps.names[kept_steps.last]).key)  # which may not be the model itself
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, head = choose_head(last)
        query = choose_query(last, "Measured at token")
    key = (subject.key, stamp_of(subject.model, weights=True), tuple(captures), query)
    reading = once("training", key, partial(readings.along_training, captures, query))
    code = python(subject, kept_steps, subject.spans if subject.spans.keys() <= last.spans.keys() else {})
    show_lambda(reading, layer, head, query, code)
    with st.expander("The answer, λ and overlap in numbers"):
        st.markdown(escape_markdown(reading.sentence))
    show_pictures(captures, layer, head, code)
    show_steps(list(captures), captures.__getitem__, layer, head, code)
    show_curves(reading, layer, head, query, code)


def show_lambda(reading, layer: int, head: int, query: int, code: str) -> None:
    """Show how λ moves, in a line and as a chart; nothing of standard attention."""
    if reading.estimates["lambda"].notnull().any():
        st.markdown("##### λ by layer")
        st.markdown(escape_markdown(lambda_in_words(reading.estimates)))
        show_curve(reading, "lambda", layer, head, query, code)


def capture_all(subject: Subject, kept_steps: Checkpoints) -> dict[int, Capture]:
    """What every checkpoint attends with on the prompt, by step; where a span cannot be marked it says so, and looks without."""
    try:
        return _captures(subject, kept_steps, subject.spans)
    except SpanError as error:
        st.warning(escape_markdown(str(error)))
        return _captures(subject, kept_steps, {})


def _captures(subject: Subject, kept_steps: Checkpoints, spans: dict) -> dict[int, Capture]:
    stamp = stamp_of(subject.model, weights=True)
    captures = {}
    bar = st.empty()
    for step, name in kept_steps.names.items():
        bar.progress(len(captures) / len(kept_steps.names), f"Looking at step {step}")
        captures[step] = capture_once(name, stamp, subject.prompt, spans)
    bar.empty()
    return captures


def python(subject: Subject, kept_steps: Checkpoints, spans: dict) -> str:
    """Python that gives the captures, with the spans that could be marked, and what is read of them."""
    names = {step: display_name(name) for step, name in kept_steps.names.items()}
    return (
        "import diffscope\nfrom diffscope import readings\n\n"
        f"names = {names!r}\n"
        f"prompt = {subject.prompt!r}\n"
        f"spans = {as_code(spans)}\n"
        "captures = {step: diffscope.load(name).capture(prompt, spans=spans) for step, name in names.items()}\n"
    )


def show_curves(reading, layer: int, head: int, query: int, code: str) -> None:
    """Show statistics of all heads over the steps, the chosen one set apart: some at once, the others in a row that opens."""
    st.markdown(f"#### All heads along the training, {head_name(layer, head)} set apart")
    names = [name for name in STATISTICS if name != "lambda" and reading.estimates[name].notnull().any()]
    draw = partial(show_curve, reading, layer=layer, head=head, query=query, code=code)
    show_statistics(names, FIRST, lambda name: str(reading.estimates[name].attrs["long_name"]), draw)


def show_curve(reading, name: str, layer: int, head: int, query: int, code: str) -> None:
    """Show one statistic of all heads over the steps."""
    figure = figures.training(reading.estimates, statistic=name, layer=layer, head=head)
    title = reading.estimates[name].attrs["long_name"]
    blocks.show_figure(
        figure,
        f"{title} of every head by step of training",
        key=f"training-{name}",
        name=f"training-{name}",
        caption=" ".join(filter(None, [STATISTICS[name], figure.data.attrs["signs"]])),
        label=escape_markdown(f"Export: {title}"),
        data=lambda: reading.estimates,
        code=code + blocks.saved(figure, f"readings.along_training(captures, {query})", name),
    )


def show_answers(subject: Subject, kept_steps: Checkpoints) -> None:
    """When the model begins to answer: the same retrieval prompts, put to every checkpoint in the background."""
    st.markdown("#### Does it answer?")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        prompts = st.number_input("Prompts", 10, 500, step=10, width=130, **bound("training-prompts", default=50))
        length = st.number_input("Tokens of each", 48, 4096, step=16, width=130, **bound("training-length", default=160))
    asked = {"prompts": int(prompts), "length": int(length), "template": kept_steps.template}
    key = ("training", subject.model, stamp_of(subject.model, weights=True), *asked.values())
    answers = background(
        key,
        "training-ask",
        "Ask every checkpoint",
        lambda: partial(_ask, names=kept_steps.names, asked=asked, open_one=opener(kept_steps.names.values())),
        caption="The same retrieval prompts are put to every checkpoint; how surely the answer is known is shown with it.",
    )
    if answers is not None:
        _show_answers(answers, kept_steps, asked)


def _ask(job: Job, names: Mapping[int, str], asked: Mapping, open_one: Callable[[str], Scope]) -> object:
    """The work of a job: every checkpoint is opened, asked and let go."""
    return accuracy_over_training(
        names, **asked, opener=lambda name: CancellableScope(open_one(name), job.check_cancelled), progress=job.report
    )


def _show_answers(answers, kept_steps: Checkpoints, asked: Mapping) -> None:
    st.markdown(escape_markdown(answers.attrs["sentence"]))
    even = answers.assign_coords(step=("step", [str(step) for step in answers["step"].values], {"long_name": EVENLY}))
    code = "import diffscope\nfrom diffscope.lab.accuracy import accuracy_over_training\n\n"
    code += as_call("answers = accuracy_over_training", repr(dict(kept_steps.names)), asked)
    code += 'steps = [str(step) for step in answers["step"].values]\n'
    code += f'even = answers.assign_coords(step=("step", steps, {{"long_name": {EVENLY!r}}}))\n'
    chances = {"exact": {"copying any number": answers.attrs["chance"]}, "log_odds": {"no preference": answers.attrs["blind"]}}
    with blocks.columns(*(f"training-asked-{name}" for name in chances), least=380) as places:
        for (name, references), place in zip(chances.items(), places):
            with place, show_errors():
                ends = {end: even[f"{name}_{end}"] for end in ("low", "high")}
                figure = figures.curves(even[name], x="step", **ends, references=references)
                known = "".join(f'{end} = even["{name}_{end}"]\n' for end in ends)
                title = answers[name].attrs["long_name"]
                blocks.show_figure(
                    figure,
                    f"{title} by step of training, with 95 % intervals",
                    key=f"training-asked-{name}",
                    name=f"training-{name}",
                    label=escape_markdown(f"Export: {title}"),
                    data=lambda: answers,
                    code=code + known + blocks.saved(figure, f"even[{name!r}]", name),
                )


def say_which_have(model: str) -> None:
    """What a model without checkpoints lacks, which models have them, and how they are kept."""
    names = ", ".join(name for name, card in bundled().items() if card.get("checkpoints"))
    have = f"Of the bundled models {names} has them. " if names else ""
    st.info(
        escape_markdown(
            f"No checkpoints of {model} were kept. {have}diffscope train keeps those that its recipe names, such as "
            "checkpoints = [0, 50, 200], in the folder of each run: give the folder of a run, such as runs/laptop/diff/seed-2."
        )
    )


def show_checkpoints() -> None:
    """Show how the chosen model came to what it does, if steps of its training were kept."""
    subject = choose_subject(at_step=False)
    if subject is None:
        return
    if subject.saved:
        raise DiffscopeError("a saved capture has no training; choose a model, or give the folder of a run")
    kept_steps = checkpoints(subject.model)
    if kept_steps.names:
        show_training(subject, kept_steps)
        show_answers(subject, kept_steps)
    else:
        say_which_have(short_name(subject.model))


def choose_kind() -> str:
    """Choose between a model's checkpoints and a training that a monitor watches, whose folder not every reader may name."""
    if not rules().paths:
        return CHECKPOINTS
    usual = MONITORED if FOLDER in st.query_params else CHECKPOINTS
    options = [CHECKPOINTS, MONITORED]
    return st.radio("Look at", options, horizontal=True, **bound("training-of", options=options, default=usual))


with show_errors():
    if choose_kind() == MONITORED:
        show_followed()
    else:
        show_checkpoints()
