"""Hypotheses: cancelling noise, or sparse and signed? The board of a study, or of the model at hand, test by test."""

from __future__ import annotations

from functools import partial

import blocks
import streamlit as st
from sources import age, bundled, own_prompts, scope, study, written
from words import in_words, plain

from diffscope.hypotheses import TESTS, Settings, gather, lacking, report, run, summary
from diffscope.hypotheses.api import with_own

MODEL = "a model"
OTHER = "a folder"
NONE = "none"
OWN = (
    'A line a prompt: {"prompt": "…", "answer": "…", "distractors": ["…"], "spans": {"answer": "…", "needles": "…", '
    '"query": "…"}}. Answer and its span are needed; a span is a text of the prompt.'
)
state = st.session_state


def choose_board() -> tuple[str, str | None]:
    """The study whose board is shown, and its name; or that a model is to be tested."""
    from diffscope.hypotheses.kept_study import shipped

    known = []
    for name in shipped():
        with in_words():  # one that cannot be read leaves the rest of the page as it is
            known += [f"{name} cohort, {board}" for board in study(name).boards]
    with st.sidebar:
        chosen = st.selectbox("Board of", [*known, MODEL], key="board", bind="query-params")
    if chosen == MODEL:
        return MODEL, None
    name, _, board = chosen.partition(" cohort, ")
    return name, board


def choose_subject() -> dict | None:
    """What to test, with how much, and which tests; None while something is missing."""
    names = [card["name"] for card in bundled()]
    with st.sidebar:
        model = _named("Model", names, "subject")
        baseline = _named("Standard model beside it", [NONE, *reversed(names)], "beside")
        cohort = st.text_input("Folder of a trained cohort", key="cohort", bind="query-params", placeholder="runs/laptop").strip()
        own = st.file_uploader("Prompts of your own", ["jsonl", "ndjson", "json", "parquet"], key="own", help=OWN)
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
        chosen = st.multiselect("Tests", list(TESTS), key="tests", placeholder="all of them")
    if not model and not cohort:
        return None
    return {
        "model": model,
        "baseline": baseline,
        "cohort": cohort,
        "prompts": int(prompts),
        "length": int(length),
        "untrained": int(untrained),
        "own": None if own is None else (own.name, own.getvalue()),
        "ids": tuple(chosen),
    }


def _named(label: str, names: list[str], key: str) -> str:
    """A model by its name or its folder; empty where there is none."""
    name = st.selectbox(label, [*names, OTHER], key=key, bind="query-params")
    if name == OTHER:
        return st.text_input(
            label, key=f"{key}-path", bind="query-params", placeholder="/path/to/model", label_visibility="collapsed"
        ).strip()
    return "" if name == NONE else name


def run_board(choices: dict) -> list | None:
    """The verdicts on what was chosen: run test by test when the button is pressed; those that are finished are not run again."""
    key = tuple(sorted((name, value) for name, value in choices.items() if name != "ids"))
    stamps = (written(choices[name]) for name in ("model", "baseline", "cohort"))
    finished = state.setdefault("_finished", {}).setdefault((key, *stamps), {})
    ids = choices["ids"] or tuple(TESTS)
    count = sum(id in finished for id in ids)
    done = count == len(ids)
    running = state.get("_running") == key
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Run the tests", key="run", type="primary", disabled=done, on_click=lambda: state.update(_running=key))
        st.button("Stop", key="stop", on_click=lambda: state.pop("_running", None), disabled=done or not running)
        st.caption(f"{count} of {len(ids)} tests are done; about three minutes for all, on two cores.")
    statements = state.setdefault("_statements", {})
    if running and not done:
        statements[key] = _run(choices, ids, finished)
        state.pop("_running", None)
        st.rerun()
    for statement in statements.get(key, []):
        st.caption(plain(f"{statement}."))
    shown = [id for id in TESTS if id in finished]
    if shown and len(shown) < len(TESTS):
        st.caption("Provisional: mechanism tests are corrected over those that are done, and more with every further one.")
    board = run(shown, finished=finished) if shown else []  # corrected for all that are done, whichever are shown
    return [verdict for verdict in board if verdict.test.id in ids] or None


def _run(choices: dict, ids: tuple, finished: dict) -> list[str]:
    """Run what is not finished; gives how the models answer, in words."""
    bar = st.progress(0.0, "opening")

    def tell(done: float, total: int, words: str) -> None:
        count = sum(id in finished for id in ids)
        bar.progress(done / total, plain(f"{count} of {len(ids)} tests · {words}"))

    settings = Settings(**{name: choices[name] for name in ("prompts", "length", "untrained")})
    if choices["own"]:
        settings = with_own(settings, own_prompts(*choices["own"]))
    subjects = gather(
        [choices["model"]] if choices["model"] else [],
        [choices["baseline"]] if choices["model"] and choices["baseline"] else [],
        choices["cohort"] or None,
        needs={TESTS[id].needs for id in ids if id not in finished},
        settings=settings,
        progress=tell,
        opener=lambda name: scope(name, age(name)),
    )
    statements = subjects.statements
    subjects.run([id for id in ids if id not in finished], finished=finished)
    return statements


def show_wanting(board: list) -> None:
    """What could not be run, and how to give what it wants."""
    wants = lacking(board)
    if not wants:
        return
    with st.expander(f"{sum(map(len, wants.values()))} tests were not run", key="wanting"):
        for want, names in wants.items():
            st.markdown(f"**{plain(want)}**: {plain(', '.join(names))}")


def show_board(board: list, title: str) -> None:
    """A summary of the tests, their verdicts side by side, and one of them in full."""
    st.markdown(f"**{plain(title)}**")
    st.markdown(plain(summary(board)))
    blocks.show_verdicts(board)
    show_wanting(board)
    with st.container(horizontal=True, horizontal_alignment="right"):
        for label, suffix, write, mime in (
            ("Board as Markdown", ".md", report.markdown, "text/markdown"),
            ("as HTML", ".html", report.page, "text/html"),
        ):
            text = partial(write, board, title)
            st.download_button(label, text, f"board{suffix}", mime, key=f"board{suffix}", on_click="ignore")
    blocks.show_estimates(board)
    shown = [verdict.test.id for verdict in board]
    chosen = st.selectbox("Test", shown, key="test", bind="query-params")
    blocks.show_verdict(board[shown.index(chosen)])


def show_study(name: str, board: str) -> None:
    """A board of a shipped study."""
    shown_study = study(name)
    fresh = shown_study.facts["fresh"]
    seeds = sorted({seed for trained in shown_study.facts["arms"].values() for seed in trained})
    which = fresh if board == "fresh seeds" else seeds
    show_board(shown_study.boards[board], f"The {name} cohort, seeds {', '.join(map(str, which))}")


def show_what_became_of_the_study() -> None:
    """Why there is no board of a study, until there is one."""
    from diffscope.hypotheses.kept_study import IN_PREPARATION, shipped
    from diffscope.hypotheses.study import TAKEN_BACK

    if shipped():
        return
    with st.expander("What does the study say?"):
        st.info(plain(f"Nothing yet: {IN_PREPARATION}."))
        st.info(plain(TAKEN_BACK))


def show_subject() -> None:
    """The board of the model or cohort that is chosen."""
    choices = choose_subject()
    if choices is None:
        st.info("Choose a model, or give the folder of a trained cohort.")
        return
    board = run_board(choices)
    if board:
        show_board(board, " beside ".join(filter(None, (choices["model"], choices["baseline"], choices["cohort"]))))


with in_words():
    name, board = choose_board()
    if board is None:
        show_subject()
        show_what_became_of_the_study()
    else:
        show_study(name, board)
