"""What is shown of a training: pictures of a head by step, a slider over the steps that plays, curves, and those of a cohort."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import blocks
import streamlit as st
from messages import escape_markdown, show_errors
from selection import select
from sidebar import LAST_STEP
from url_state import bound, save_view_state, view_state

from diffscope import figures
from diffscope.capture.capture import Capture
from diffscope.lab.training.cohort import open_dataset
from diffscope.numbers import capital, head_name

PACE = 1.2  # seconds a checkpoint is shown for while they play
state = st.session_state


def show_pictures(captures: Mapping[int, Capture], layer: int, head: int, code: str) -> None:
    """The head's map at every checkpoint, on one scale; a click on one chooses its step."""
    steps = list(captures)

    def picked() -> None:
        points = (state.get("training-pictures") or {}).get("selection", {}).get("points", [])
        # a second click on the same picture takes the selection away: it means that picture again
        step = int(points[0]["customdata"]) if points else state.get("_picked")
        state["_picked"] = step
        if step in steps:
            state["step"] = option_of(step, steps)

    with show_errors():
        figure = figures.checkpoints(captures, layer=layer, head=head)
        alt = f"Map of {head_name(layer, head)} at the steps {', '.join(map(str, steps))}"
        blocks.show_figure(
            figure,
            alt,
            key="training-pictures",
            name=f"checkpoints-layer{layer}-head{head}",
            label="Export the pictures",
            on_select=picked,
            selection_mode="points",
            code=code + blocks.saved(figure, "captures", "checkpoints"),
        )


def option_of(step: int, steps: list[int]) -> str:
    """A step as the slider has it, which all pages share."""
    return LAST_STEP if step == steps[-1] else str(step)


def show_steps(
    steps: list[int], capture_at: Callable[[int], Capture], layer: int, head: int, code: str, grows: bool = False
) -> None:
    """A slider over the checkpoints that plays, and the maps of the head at the chosen one; of a training that `grows` too."""
    end = "the last so far" if grows else "the end"
    options = [option_of(step, steps) for step in steps]
    if grows and state.get("_step-options", options) != options:  # Streamlit would keep the place among the options
        state["step"] = state.get("_step-shown", LAST_STEP)
    state["_step-options"] = options
    words = {option: f"{step} ({end})" if option == LAST_STEP else option for option, step in zip(options, steps)}

    @st.fragment(run_every=PACE if state.get("_playing") else None)
    def look() -> None:
        if (state["layer"], state["head"]) not in ((layer, head), (None, None)):
            st.rerun()  # an arrow key chose another head: what lies above marks it
        if state.get("_playing"):
            play_on(options)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            if st.button("Pause" if state.get("_playing") else "Play", key="training-play", disabled=len(options) < 2):
                begin_or_pause(options)
                st.rerun()
            chosen = st.select_slider(
                "Step of training", options, **bound("step", options=options, default=LAST_STEP), format_func=words.__getitem__
            )
        state["_step-shown"] = chosen
        step = steps[options.index(chosen)]
        cap = capture_at(step)
        blocks.show_view(
            cap,
            layer,
            head,
            on_head=select,
            key="training-view",
            state=view_state("training-view", cap),
            on_state=partial(save_view_state, "training-view"),
        )
        blocks.offer_maps(cap, layer, head, code, label=f"Export the maps of step {step}", subject=f"captures[{step}]")

    look()


def begin_or_pause(options: list[str]) -> None:
    """Play from the chosen step on, at the end from the first; or stay where it is."""
    state["_playing"] = not state.get("_playing")
    state["_turned"] = time.monotonic()
    if state["_playing"] and state.get("step") == options[-1]:
        state["_next"] = options[0]
    state["_played"] = state.get("_next", state.get("step"))


def play_on(options: list[str]) -> None:
    """The next step, when the one before was shown long enough; at the end it pauses."""
    if "_next" in state:
        state["step"] = state.pop("_next")
        return
    now = time.monotonic()
    if state.get("step") != state.get("_played"):  # chosen by hand: it is shown as long as any other
        state["_played"] = state.get("step")
        state["_turned"] = now
    if now - state["_turned"] < 0.9 * PACE:
        return
    at = options.index(state["step"]) if state.get("step") in options else 0
    state["_turned"] = now
    if at + 1 < len(options):
        state["step"] = state["_played"] = options[at + 1]
    else:
        state["_playing"] = False
        st.rerun()


def show_statistics(
    names: Sequence[str], first: Sequence[str], title_of: Callable[[str], str], draw: Callable[[str], None]
) -> None:
    """Draw those statistics that come `first` at once, or all if none does; the others in a row that opens."""
    shown = [name for name in first if name in names] or names
    others = [name for name in names if name not in shown]
    side_by_side(shown, draw)

    @st.fragment
    def show_others() -> None:
        title = capital(", ".join(map(title_of, others)))
        with blocks.folded(escape_markdown(title), "training-others") as is_open:
            if is_open:
                side_by_side(others, draw)

    if others:
        show_others()


def side_by_side(names: Sequence[str], draw: Callable[[str], None]) -> None:
    """Draw statistics beside each other, as far as there is room."""
    with blocks.columns(*(f"training-{name}" for name in names), least=320) as places:
        for name, place in zip(names, places):
            with place, show_errors():
                draw(name)


def show_cohort(folder: str) -> None:
    """Show exact answers of every arm in training, and in the end by length and distractors."""
    figure = figures.cohort(open_dataset(Path(os.path.expanduser(folder))))
    code = "from pathlib import Path\n\nimport diffscope\nfrom diffscope.lab.training.cohort import open_dataset\n\n"
    code += blocks.saved(figure, f"open_dataset(Path({folder!r}))", "cohort")
    alt = "Exact answers of every arm in training, and in the end by length and distractors"
    blocks.show_figure(figure, alt, key="cohort-curves", name="cohort", label="Export the curves", code=code)
