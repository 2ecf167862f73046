"""Tests: cancelling noise, sparse, or signed? What a study says of it, or the model at hand, test by test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import blocks
import streamlit as st
from access import rules
from background import Job, background
from board import MOST_PROMPTS, Board, TestRequest, provisional, run_tests
from cache import check_lengths, scope, stamp_of, study
from catalog import bundled, resolve, trusts_code, without_step
from file_picker import choose_file, is_given
from messages import escape_markdown, show_errors
from model_panel import NEEDS
from sidebar import choose_model
from training_views import show_cohort
from url_state import bound

from diffscope import figures, tables
from diffscope.cards import is_standard, to_compare_with
from diffscope.cli.study import REPORT
from diffscope.figures.escaping import short_name
from diffscope.figures.tests import quantities
from diffscope.hypotheses import TESTS, lacking, report, summary
from diffscope.hypotheses.accounts import ACCOUNTS, LEGEND
from diffscope.hypotheses.conclusion import by_word, of_kind, overall
from diffscope.hypotheses.gathering import checkpoint_names
from diffscope.hypotheses.rules import A2, ANSWER, CHECKPOINTS, KNOCK_OUT
from diffscope.hypotheses.tests import KINDS
from diffscope.numbers import counted

MODEL = "the model"
COHORT = "a trained cohort"
NONE = "none"
QUESTION = "Does it cancel noise, is it sparse, or does it carry signal with a minus sign?"
OF_KIND = {
    "primary": "what a study of many trainings is decided by; fixed before its data",
    "mechanism": "what an account says of how it comes about; a row opens where it stands",
    "measurement": "shown without a verdict: no account predicts them, or they cannot tell accounts apart",
}
STANDARD = "tests need a second map. Choose a differential model, and this one as the standard model beside it."
COUNT = {  # what heads count with, in the words of the choice
    KNOCK_OUT: "what the answer loses without them",
    A2: "what it loses without their A2",
    ANSWER: "A1's mass on the answer",
}
ARMS = {
    "answers": "answers",
    "formation": "formation",
    "log_odds": "by distractors",
    "lambda": "λ",
    "rejection": "rejected noise",
}
WIDE = {"source": 90, "claim": 390, "published": 170, "quantity": 260, "limits": 600}  # pixels of the columns of claims
FIRST = ("source", "claim", "answer", "quantity", "here [95 %]")  # columns of claims that are seen without scrolling
state = st.session_state


def choose_board() -> tuple[str, str | None]:
    """The study whose board is shown, and its name; or that a model or a cohort is tested."""
    from diffscope.hypotheses.shipped import shipped

    known = []
    for name in shipped():
        with show_errors():  # one that cannot be read leaves the rest of the page as it is
            known += [f"{name} cohort, {board}" for board in study(name).boards]
    options = [*known, MODEL, *([COHORT] if rules().paths else [])]
    with st.sidebar:
        chosen = st.selectbox("Tests of", options, **bound("tests-board", options=options))
    if chosen in (MODEL, COHORT):
        return chosen, None
    name, _, board = chosen.partition(" cohort, ")
    return name, board


def choose_tests(kind: str) -> TestRequest | None:
    """What to test, with how much, and which tests; None while something is missing, which is said."""
    model, beside, cohort = "", "", ""
    if kind == MODEL:
        model = choose_model(saved_too=False) or ""
        beside = choose_beside(model)
    else:
        with st.sidebar:
            cohort = st.text_input("Folder of a trained cohort", **bound("tests-cohort"), placeholder="runs/laptop").strip()
        if not cohort:
            st.info("Give the folder of a trained cohort, as diffscope train leaves it.")
    with st.sidebar, st.expander("Prompts and tests", expanded=is_given("tests-own")):
        own = choose_file("Prompts of your own", "tests-own")
        prompts = st.number_input("Prompts", 10, MOST_PROMPTS, step=5, **bound("tests-prompts", default=40))
        length = st.number_input("Tokens a prompt", 64, 4096, **bound("tests-length", default=160))
        untrained = st.number_input(
            "Untrained models",
            3,
            200,
            **bound("tests-untrained", default=24),
            help="Models of random weights that a trained one is compared with.",
        )
        weights = st.selectbox(
            "Heads count with",
            list(COUNT),
            **bound("tests-weights", options=list(COUNT)),
            format_func=COUNT.get,
            help="A mean over heads says little of heads that do nothing: by default heads count with what the answer loses "
            "without them. By layer, and by A1's mass on the answer, the numbers stand beside.",
        )
        tests = st.multiselect("Tests", list(TESTS), **bound("tests-tests"), placeholder="all of them")
    if not model and not cohort:
        return None
    if is_standard(bundled().get(without_step(model), {})):
        st.info(f"{escape_markdown(short_name(model))} is standard attention, and {STANDARD}")
        return None
    return TestRequest(model, beside, cohort, int(prompts), int(length), int(untrained), weights, own, tuple(tests))


def choose_beside(model: str) -> str:
    """A standard model to compare with, by default a bundled one that learned what a bundled model did; empty for none."""
    cards, base = bundled(), without_step(model)

    def learned_the_same(name: str) -> bool:
        return is_standard(cards[name]) and all(cards[name].get(key) == cards[base].get(key) for key in ("task", "sentence"))

    standard = [name for name in to_compare_with(base, cards) if base in cards and learned_the_same(name)]
    first = standard[0] if standard else NONE
    options = [*(name for name in cards if name != base), NONE]
    other, default = state.get("_tests-beside", (base, first))
    if other != base and state.get("tests-beside") in (default, base):  # the reader chose none for the model before
        state["tests-beside"] = first
    state["_tests-beside"] = base, first
    with st.sidebar:
        chosen = st.selectbox("Standard model beside it", options, **bound("tests-beside", options=options, default=first))
    return "" if chosen == NONE else chosen


def tested(choices: TestRequest) -> Board:
    """What is known of what was chosen; the rest can be run, in the background, and is shown as it comes."""
    finished = state.setdefault("_finished", {}).setdefault(choices.key, {})
    statements = state.setdefault("_statements", {}).setdefault(choices.key, [])
    key = ("tests", choices.key)

    def counted() -> str:
        return f"{sum(id in finished for id in choices.asked)} of {len(choices.asked)} tests are done"

    with show_errors():
        if not set(choices.asked) <= set(finished):
            background(
                key,
                "tests-run",
                f"Run the tests on {escape_markdown(choices.title)}",
                partial(prepare_tests, choices, finished, statements),
                caption=f"{counted()}. They run in the background; each is shown when it is done.",
                primary=True,
                words=counted,
                news=lambda: len(finished),
            )
    return provisional(choices, finished, statements)


def prepare_tests(choices: TestRequest, finished: dict, statements: list[str]) -> Callable[[Job], None]:
    """Open the models that are tested, and return the work."""
    opened = {name: scope(name, stamp_of(name)) for name in choices.names}
    settings = choices.settings()
    for model in opened.values():
        check_lengths(model, settings.own or ())
    return partial(
        run_tests,
        choices=choices,
        settings=settings,
        opened=opened,
        places={name: resolve(name) for name in choices.names},
        trust=trusts_code(choices.model),
        finished=finished,
        statements=statements,
    )


def of_study(name: str, board: str) -> Board:
    """A board of a shipped study."""
    from diffscope.hypotheses.study import ALL

    facts = study(name).facts
    seeds = ", ".join(map(str, sorted({seed for trained in facts["arms"].values() for seed in trained})))
    which = f"seeds {seeds}" if board == ALL else board
    code = "import diffscope\nfrom diffscope.hypotheses.study import open_study\n\n"
    code += f"board = open_study({name!r}).boards[{board!r}]\n"
    verdicts = {verdict.test.id: verdict for verdict in study(name).boards[board]}
    return Board(f"The {name} cohort, {which}", verdicts, code)


def show_arms(name: str, board: str) -> None:
    """What the arms of a study came to, all seeds of them whichever board is shown."""
    from diffscope.hypotheses.study import ALL

    known = quantities(study(name))
    offered = [quantity for quantity in ARMS if quantity in known]
    if not offered:
        return
    with st.expander("The arms, seed by seed", key="tests-arm-charts"):
        chosen = st.segmented_control(
            "Shown",
            offered,
            **bound("tests-arms", options=offered),
            format_func=ARMS.get,
            required=True,
            label_visibility="collapsed",
        )
        figure = figures.study(study(name), quantity=chosen)
        caption = figure.caption if board == ALL else f"All seeds, not only those of this board. {figure.caption}"
        code = f"import diffscope\nfrom diffscope.hypotheses.study import open_study\n\nstudy = open_study({name!r})\n"
        code += blocks.saved(figure, "study", "study")
        blocks.show_figure(
            figure, figure.caption, key="tests-arms-chart", name="study", label="Export the figure", caption=caption, code=code
        )


def show_claims(name: str) -> None:
    """What others have published, beside a study."""
    with st.expander("What others have published, beside this study", key="tests-claims"):
        table = tables.claims(study(name))
        st.caption(escape_markdown(table.caption))
        columns = {name: st.column_config.TextColumn(width=pixels) for name, pixels in WIDE.items()}
        rows = [dict(zip(table.header, row)) for row in table.rows]
        order = [*FIRST, *(name for name in table.header if name not in FIRST)]
        st.dataframe(rows, hide_index=True, height=480, column_config=columns, column_order=order)
        st.caption(escape_markdown(" ".join(table.notes)))
        blocks.export_menu("claims", label="Export the claims", text=table.to_markdown)


def show_answer(board: Board | None, of: str | None) -> None:
    """What can be said today: by the study of this name, or by those that are shipped."""
    from diffscope.hypotheses.shipped import shipped

    st.markdown(f"### {QUESTION}")
    if board is not None and _decides(board):
        show_points(board.title, overall(list(board.verdicts.values())))
        if of is not None:
            show_notes(of)
        return
    for name in shipped():
        with show_errors():
            show_points(f"The {name} study", overall(next(iter(study(name).boards.values()))))
            show_notes(name)


def show_notes(name: str) -> None:
    """What was found of a study by hand, if anything was."""
    if notes := study(name).notes:
        show_points("", notes)


def show_points(title: str, points: Sequence[str]) -> None:
    """The first in a line, after a title if there is one, and the others as a list below it."""
    first, *others = (escape_markdown(point.removesuffix(":")) for point in points)
    if title:
        st.markdown(f"**{escape_markdown(title)}.** {first}")
    if others:
        with st.expander("Account by account" if title else first):
            st.markdown("".join(f"- {point}\n" for point in others))
    elif not title:
        st.markdown(first)


def _decides(board: Board) -> bool:
    """Whether a primary test of a board has numbers."""
    return any(verdict.estimates for verdict in of_kind(board.verdicts.values(), "primary"))


def show_by_itself(choices: TestRequest, board: Board) -> None:
    """What the model at hand can tell, and once it is tested, what it told."""
    verdicts = list(board.verdicts.values())
    ran = [verdict for verdict in verdicts if verdict.estimates]
    title = escape_markdown(choices.title)
    if ran and not _decides(board):
        parts = [by_word(account, of_kind(ran, "mechanism")) for account in ACCOUNTS]
        parts += [f"{count} measured" if (count := len(of_kind(ran, "measurement"))) else ""]
        words = escape_markdown("; ".join(filter(None, parts)))
        st.markdown(
            f"**{title} by itself.** Of the tests that were run: {words}. "
            "That is how these heads work on these prompts. Whether differential attention is better, and why, is for the "
            "primary tests."
        )
    elif choices.model and not ran:
        st.markdown(f"**{title} by itself** can show how its own heads work: {_what_tests_need(choices)}.")
    for statement in board.statements:
        st.caption(escape_markdown(f"{statement}."))
    if verdicts and len(verdicts) < len(choices.asked):
        st.caption("Provisional: mechanism tests are corrected over those that are done, and more with every further one.")


def _what_tests_need(choices: TestRequest) -> str:
    """Say how many of the tests that are asked for can be run on the model, and what the others need."""
    needs = Counter(TESTS[test].needs for test in choices.asked)
    able = needs["model"]
    able += needs.pop("pair", 0) if choices.beside else 0
    able += needs.pop("checkpoints", 0) if len(checkpoint_names(resolve(choices.model))) >= CHECKPOINTS else 0
    wanted = {name: lacks for name, (lacks, _) in NEEDS.items() if name != "model" and needs[name]}
    others = [f"{needs[name]} need{'' if needs[name] > 1 else 's'} {lacks}" for name, lacks in wanted.items()]
    if needs["cohort"]:
        others[-1] += ", as all primary tests do"
    return "; ".join([f"{able} of {counted(len(choices.asked), 'test')} can be run", *others])


def show_wanting(verdicts: list) -> None:
    """What could not be run, and how to give what it wants."""
    wants = lacking(verdicts)
    if not wants:
        return
    count = sum(map(len, wants.values()))
    with st.expander(f"{counted(count, 'test')} {'was' if count == 1 else 'were'} not run", key="tests-wanting"):
        for want, names in wants.items():
            st.markdown(f"**{escape_markdown(want)}**: {escape_markdown(', '.join(names))}")


def show_tests(board: Board | None, asked: tuple[str, ...]) -> None:
    """The primary tests large, then mechanism tests and measurements as rows that open."""
    verdicts = {} if board is None else board.verdicts
    code = "" if board is None else board.code
    for kind, words in KINDS.items():
        tests = [TESTS[id] for id in asked if TESTS[id].kind == kind]
        if kind == "primary":
            st.markdown(f"#### {words}", help=escape_markdown(f"{OF_KIND[kind]}. {LEGEND}"))
            blocks.show_primaries(verdicts, code)
            continue
        with st.expander(f"{words} ({len(tests)})", key=f"tests-{kind}"):
            st.caption(f"{OF_KIND[kind]}.")
            for test in tests:
                blocks.show_test(test, verdicts.get(test.id), code)


def offer(board: Board) -> None:
    """All of it in words and side by side, and to be taken away."""
    verdicts = list(board.verdicts.values())
    with st.expander("All tests together: in words, and on one axis", key="tests-summary"):
        st.markdown("\n\n".join(map(escape_markdown, summary(verdicts).split("\n\n"))))
        blocks.show_estimates(verdicts)
    measured = any(verdict.estimates for verdict in verdicts)
    figure = partial(figures.board, verdicts)
    blocks.export_menu(
        "board",
        label="Export the board",
        figure=figure if measured else None,
        page=partial(report.page, verdicts, board.title, board.statements),
        data=(lambda: figure().data) if measured else None,
        text=partial(report.markdown, verdicts, board.title, board.statements),
        code=board.code + 'diffscope.figures.board(board).save("board.pdf")\n',
    )


with show_errors():
    kind, chosen = choose_board()
    choices = None
    board = None
    if chosen is not None:
        board = of_study(kind, chosen)
    else:
        choices = choose_tests(kind)
    answer = st.container()
    if choices is not None:
        board = tested(choices)
    with answer:
        show_answer(board, None if chosen is None else kind)
        if chosen is not None:
            st.caption(f"{REPORT[0].upper()}{REPORT[1:]}.")
            show_arms(kind, chosen)
        if choices is not None:
            show_by_itself(choices, board)
            if choices.cohort:
                with show_errors(), st.expander("Curves of all arms and seeds", key="tests-curves"):
                    show_cohort(choices.cohort)
    if board is not None:
        show_wanting(list(board.verdicts.values()))
    show_tests(board, tuple(TESTS) if choices is None else choices.asked)
    if board is not None and board.verdicts:
        offer(board)
    if chosen is not None:
        show_claims(kind)
