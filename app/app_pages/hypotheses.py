"""Hypotheses: cancelling noise, or sparse and signed? The board of a study, or of the model at hand, test by test."""

from __future__ import annotations

from pathlib import Path

import blocks
import streamlit as st
from sources import age, bundled, in_words, plain, scope, study, written

from diffscope.hypotheses import TESTS, gather, report, run, together

MODEL, OTHER, NONE = "a model", "a folder", "none"
state = st.session_state


def choose_board() -> tuple[str, str | None]:
    """The study whose board is shown, and its name; or that a model is to be tested."""
    from diffscope.hypotheses.study import shipped

    with st.sidebar:
        known = [f"{name} cohort, {board}" for name in shipped() for board in study(name).boards]
        chosen = st.selectbox("Board of", [*known, MODEL], key="board", bind="query-params")
    if chosen == MODEL:
        return MODEL, None
    name, _, board = chosen.partition(" cohort, ")
    return name, board


def choose_subject() -> dict | None:
    """What to test, with how much, and which tests; None while something is missing."""
    names = [card["name"] for card in bundled()]
    with st.sidebar:
        model = _named("Differential model", names, "subject")
        baseline = _named("Standard model beside it", [NONE, *reversed(names)], "beside")
        cohort = st.text_input("Folder of a trained cohort", key="cohort", bind="query-params", placeholder="runs/laptop").strip()
        prompts = st.number_input("Prompts", 10, 200, 40, step=5, key="prompts", bind="query-params")
        length = st.number_input("Tokens a prompt", 64, 4096, 160, key="length", bind="query-params")
        untrained = st.number_input(
            "Untrained models",
            3,
            200,
            24,
            key="untrained",
            bind="query-params",
            help="Models of random weights that a trained one is compared with.",
        )
        asked = {"prompts": int(prompts), "length": int(length), "untrained": int(untrained)}
        chosen = st.multiselect("Tests", list(TESTS), key="tests", placeholder="all of them")
    if not model and not cohort:
        return None
    return {"model": model, "baseline": baseline, "cohort": cohort, "ids": tuple(chosen), **asked}


def _named(label: str, names: list[str], key: str) -> str:
    """A model by its name or its folder; empty where there is none."""
    name = st.selectbox(label, [*names, OTHER], key=key, bind="query-params")
    if name == OTHER:
        return st.text_input(
            label, key=f"{key}-path", bind="query-params", placeholder="/path/to/model", label_visibility="collapsed"
        ).strip()
    return "" if name == NONE else name


def run_board(asked: dict) -> list | None:
    """The verdicts on what is asked about: made test by test when the button is pressed, kept as far as they are finished."""
    key = tuple(sorted((name, value) for name, value in asked.items() if name != "ids"))
    kept = state.setdefault("_kept", {}).setdefault(
        (key, *(written(asked[name]) for name in ("model", "baseline", "cohort"))), {}
    )
    ids = asked["ids"] or tuple(TESTS)
    done = all(one in kept for one in ids)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Run the tests", key="run", type="primary", disabled=done, on_click=lambda: state.update(_running=key))
        st.button("Stop", key="stop", on_click=lambda: state.pop("_running", None), disabled=done or state.get("_running") != key)
        st.caption(f"{sum(one in kept for one in ids)} of {len(ids)} tests are done; about three minutes for all, on two cores.")
    if not done and state.get("_running") == key:
        _run(asked, ids, kept)
        state.pop("_running", None)
        st.rerun()
    there = [one for one in TESTS if one in kept]
    if there and len(there) < len(TESTS):
        st.caption("Provisional: Holm's correction is over the tests that are done, and grows with every further one.")
    board = run(there, kept=kept) if there else []  # corrected for all that are done, whichever are shown
    return [one for one in board if one.test.id in ids] or None


def _run(asked: dict, ids: tuple, kept: dict) -> None:
    bar = st.progress(0.0, "opening")

    def told(done: int, total: int, words: str) -> None:
        finished = sum(one in kept for one in ids)
        bar.progress(finished / len(ids), plain(f"{finished} of {len(ids)} tests · {words} · {done} of {total}"))

    needs = {TESTS[one].needs for one in ids if one not in kept}
    subjects = gather(
        [asked["model"]] if asked["model"] else [],
        [asked["baseline"]] if asked["model"] and asked["baseline"] else [],
        Path(asked["cohort"]) if asked["cohort"] else None,
        needs=needs,
        progress=told,
        opener=lambda name: scope(name, age(name)),
        **{name: asked[name] for name in ("prompts", "length", "untrained")},
    )
    subjects.run(ids, kept=kept)


def show_board(board: list, title: str) -> None:
    """What the tests say together, side by side, and one of them in full."""
    st.markdown(f"**{plain(title)}**")
    st.markdown(plain(together(board)))
    blocks.show_verdicts(board)
    with st.container(horizontal=True, horizontal_alignment="right"):
        for label, suffix, made, mime in (
            ("Board as Markdown", ".md", lambda: report.markdown(board, title), "text/markdown"),
            ("as HTML", ".html", lambda: report.page(board, title), "text/html"),
        ):
            st.download_button(label, made, f"board{suffix}", mime, key=f"board{suffix}", on_click="ignore")
    blocks.show_estimates(board)
    shown = [one.test.id for one in board]
    chosen = st.selectbox("Test", shown, key="test", bind="query-params")
    blocks.show_verdict(board[shown.index(chosen)])


with in_words():
    name, board = choose_board()
    if board is not None:
        kept = study(name)
        seeds = sorted({seed for some in kept.facts["arms"].values() for seed in some})
        fresh = kept.facts["fresh"]
        which = fresh if board == "fresh seeds" else seeds
        show_board(kept.boards[board], f"The {name} cohort, seeds {', '.join(map(str, which))}")
    else:
        asked = choose_subject()
        if asked is None:
            st.info("Choose a differential model, or give the folder of a trained cohort.")
        else:
            found = run_board(asked)
            if found:
                show_board(found, " beside ".join(filter(None, (asked["model"], asked["baseline"], asked["cohort"]))))
