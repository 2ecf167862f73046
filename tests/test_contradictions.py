"""Nothing that is shown claims the opposite of its own number: rows of tests, tables, labels of figures, and sentences."""

import math
import re
from dataclasses import replace

import pytest
import torch
import xarray as xr

import diffscope
from diffscope import edits, figures, readings, tables, tasks
from diffscope.figures.tests import quantities
from diffscope.hypotheses import TESTS, report, run, summary
from diffscope.hypotheses.shipped import shipped
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.study import open_study
from diffscope.readings import Prediction, noise_cost, ranks, rejection
from diffscope.readings.second_map import layers_sentence
from tests.contradictions import PREDICTED, ROWS, of_conclusion, of_row, of_sentence, of_words
from tests.instruments.planted import capture_of, layer_of

STATED = {  # as titles of tests were before, which the shipped study says the opposite of
    "sparsity": "D is sparser than A1.",
    "key-token-gain": "The subtraction moves attention to the answer.",
    "key-token-gain-pair": "DIFF looks more at the answer than standard attention does.",
}
THAN = re.compile(r"\b(later|earlier|more|less|better|worse|larger|smaller|sparser|higher|lower) than\b|\b(?:goes|go) with\b")


def of_sign(sign, width=0.25):
    """Verdicts of every test, all estimates on one side of 0, or around it; no two of a test are the same number."""

    def one(number):
        value = sign * (0.5 + number / 100)
        return Estimate(value, value - width, value + width, -0.1, 0.1, 0.001, 10, 8, 4, "as planted")

    return run(finished={id: {name: one(n) for n, name in enumerate(test.quantities)} for id, test in TESTS.items()})


def boards():
    """Boards of the shipped studies, and planted ones of which all estimates are above 0, below it, and neither."""
    kept = {f"{name}, {board}": of for name in shipped() for board, of in open_study(name).boards.items()}
    return kept | {"above": of_sign(1), "below": of_sign(-1), "open": of_sign(0.25)}


@pytest.fixture(scope="module")
def every_board():
    return boards()


def rows(verdicts):
    """Rows of tests as people read them, by the place: command line, Markdown, HTML, notebook."""
    by_id = {verdict.test.id: verdict for verdict in verdicts}
    for id, question, answer in ((verdict.test.id, verdict.test.question, verdict.answer) for verdict in verdicts):
        yield "command line", f"{question} {answer}", by_id[id]
    for line in report.markdown(verdicts, "").splitlines():
        cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        if cells[0] in by_id and len(cells) == 1 + len(report.HEADINGS[by_id[cells[0]].test.kind]):
            yield "Markdown", " ".join(cells[1:3]), by_id[cells[0]]
    for verdict in verdicts:
        words = re.sub("<[^>]+>", " ", verdict._repr_html_().replace("&#x27;", "'").replace("&lt;", "<"))
        yield (
            "notebook",
            " ".join(words.split("question", 1)[1].split("statistic", 1)[0].split()).replace("? answer ", "? "),
            verdict,
        )


def test_every_declared_test_is_scanned():
    assert set(ROWS) == set(TESTS)
    for id, (words, signs) in ROWS.items():
        assert words in TESTS[id].question and set(signs) == set(TESTS[id].asks), id


def test_no_row_of_any_board_contradicts_its_numbers(every_board):
    for name, verdicts in every_board.items():
        scanned = [(place, wrong) for place, text, verdict in rows(verdicts) for wrong in of_row(text, verdict)]
        assert not scanned, (name, scanned)
        assert sum(1 for _ in rows(verdicts)) == 3 * len(verdicts)


def test_no_word_of_any_board_contradicts_its_intervals_and_no_conclusion_its_cells(every_board):
    assert set(PREDICTED) == {id for id, test in TESTS.items() if test.judged}
    for name, verdicts in every_board.items():
        assert not [wrong for verdict in verdicts for wrong in of_words(verdict)], name
        assert not of_conclusion(summary(verdicts), verdicts), name
    judged = [verdict for verdict in every_board["above"] if verdict.verdicts]
    assert {word for verdict in judged for word in verdict.verdicts.values()} == {"for", "against", "silent", "open"}


def test_the_scan_finds_words_that_are_turned(every_board):
    (noise,) = (verdict for verdict in every_board["below"] if verdict.test.id == "common-noise")
    for words in ({"NC": "for"}, {"SP": "for"}, {"SH": "open"}):
        assert of_words(replace(noise, verdicts=noise.verdicts | words)), words
    (above,) = (verdict for verdict in every_board["above"] if verdict.test.id == "signed-mask")
    assert of_words(replace(above, verdicts=above.verdicts | {"NC": "against"}))
    told = summary(every_board["above"])
    assert of_conclusion(re.sub("(Sparsification: for it: )[^;]*", r"\1common-noise", told), every_board["above"])


def test_the_scan_finds_titles_that_state_the_opposite(every_board):
    verdicts = {verdict.test.id: verdict for name, of in every_board.items() if name.endswith("all seeds") for verdict in of}
    for id, title in STATED.items():
        assert of_row(title, verdicts[id]), f"{title} went unseen"
        question = TESTS[id].question
        turned = verdicts[id].answer.replace("no: ", "YES: ").replace("yes: ", "no: ").replace("YES: ", "yes: ")
        assert of_row(f"{question} {turned}", verdicts[id]) and not of_row(f"{question} {verdicts[id].answer}", verdicts[id])


def test_the_words_of_a_table_are_those_of_its_intervals(every_board):
    for verdicts in every_board.values():
        data = tables.board(verdicts).data
        for _, row in data[data["answer"] != ""].iterrows():
            asked = [name for name, quantity in TESTS[row["test"]].quantities.items() if quantity.label == row["quantity"]]
            sign = ROWS[row["test"]][1][asked[0]]
            side = (row["low"] > 0) - (row["high"] < 0)
            due = {sign: "yes", -sign: "no", 0: "not told apart from 0"}[side]
            assert row["answer"] == ("not measured" if math.isnan(row["value"]) else due), row["test"]
        assert set(data["test"]) == {verdict.test.id for verdict in verdicts}


def test_published_claims_have_the_sign_that_their_row_says():
    for name in shipped():
        for _, row in tables.claims(open_study(name)).data.iterrows():
            if row["claimed"] in ("above 0", "below 0") and row["answer"] in ("same sign", "other sign"):
                above = row["low"] > 0
                assert above or row["high"] < 0
                assert (row["answer"] == "same sign") == (above == (row["claimed"] == "above 0")), row["says"]


def test_labels_titles_and_captions_of_figures_name_and_do_not_claim(every_board):
    """A label stands beside a number of either sign: "DIFF forms later than …: −2.5" would be a claim against it."""
    labels = [quantity.label for test in TESTS.values() for quantity in test.quantities.values()]
    titles = [str(function.__doc__).partition("\n")[0] for function in figures.FIGURES.values()]
    captions = [
        figures.study(study, quantity=quantity).caption
        for name in shipped()
        for study in [open_study(name)]
        for quantity in quantities(study)
    ]
    assert not [text for text in (*labels, *titles, *captions) if THAN.search(text)]
    drawn = [label for verdicts in every_board.values() for label in figures.board(verdicts).data["label"].values]
    assert set(map(str, drawn)) <= set(labels)


def of_models():
    """Sentences of readings of the bundled models."""
    prompts = tasks.examples()[:2]
    example = prompts[0]
    by_depth = []
    for name in ("mini-diff", "mini-standard"):
        scope = diffscope.load(name)
        cap = scope.capture(example.text, spans=example.spans)
        for layer in cap.layers:
            yield from (readings.of_head(cap, layer.layer, head, query) for head in range(layer.n_heads) for query in (-1, 20))
        tried = {"without L0": edits.ablate_heads(layers=0), "without L1": edits.ablate_heads(layers=1)}
        ablated = edits.ablate_heads(layers=0, heads=0)
        asked = readings.encode_question(scope, cap, example.answer, example.distractors)
        with scope.edit(ablated):
            after, edited = readings.predict(scope, cap, asked), scope.capture(example.text, spans=example.spans)
        yield from (readings.answer_heads(cap), readings.amplifier(cap), readings.allocation(cap), ranks(cap))
        yield from (readings.ablations(scope, prompts), readings.interventions(scope, prompts, tried))
        by_depth.append(readings.depths(scope, [128], prompts=2))
        yield from (rejection(cap, sigmas=[0.5], draws=3), by_depth[-1])
        yield from (readings.answers(readings.predict(scope, cap, asked), after), readings.effects(cap, edited, [ablated]))
        plain = [replace(prompt, distractors=()) for prompt in prompts]
        yield readings.interventions(scope, plain, tried)
    scope = diffscope.load("mini-diff")
    question = readings.question(scope, scope.capture(example.text, spans=example.spans), example.answer)
    yield from (readings.where_a2_works(opened, example) for opened in (scope, diffscope.load("mini-diff@0")))
    yield from (noise_cost(scope, question, sigmas=(1.0,), draws=3), readings.branches(scope, question))
    steps = {step: diffscope.load(f"mini-diff@{step}").capture(example.text, spans=example.spans) for step in (0, 200, 400)}
    yield from (readings.along_training(steps, level=level) for level in (0.5, 0.99))
    two = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
    yield readings.differences(diffscope.compare(*two, example.text, example.spans))
    for order in (1, -1):
        yield readings.contrast(*(reading.estimates for reading in by_depth[::order]), ("one", "other")[::order])


def test_no_sentence_about_a_bundled_model_contradicts_its_numbers():
    found = set()
    for reading in of_models():
        wrong, claims = of_sentence(reading.sentence)
        assert not wrong, wrong
        found |= set(claims)
    assert len(found) > 20, found


def planted(second, lam=0.6):
    """A head and two others: its second map is drawn from `second`, those of the others are strangers or copies of its first."""
    n = 16
    scores = [torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double() * 1.5 for seed in (1, 2, 3, *second)]
    return capture_of(layer_of(torch.stack(scores), lam=lam), spans={"answer": [4, 5], "query": [14, 15]})


@pytest.mark.parametrize("second, words", [((1, 8, 9), "more than"), ((9, 1, 1), "less than"), ((7, 7, 7), "about as much")])
def test_a_planted_sign_is_told_as_it_is(second, words):
    sentence = readings.of_head(planted(second), 0, 0).sentence
    assert f", {words}" in sentence and not of_sentence(sentence)[0]
    size = r"(\.\d+|1\.00)"
    own, middle, low, high = re.search(
        rf"overlap by {size}, .* 2 other heads' A2 \({size}(?:, {size} to {size})?\)", sentence
    ).groups()
    turned = sentence.replace(own, "@").replace(low or middle, own).replace("@", high or middle)
    assert words == "about as much" or of_sentence(turned)[0], "numbers of the other sign go unseen"


@pytest.mark.parametrize("before, after", [(9.2, 1.6), (1.6, 9.2), (-1.0, -4.0)])
def test_planted_predictions_rise_and_fall(before, after):
    sides = [Prediction(torch.zeros(3).numpy(), -0.5, odds, 2) for odds in (before, after)]
    sentence = readings.answers(*sides).sentence
    wrong, claims = of_sentence(sentence)
    assert not wrong and claims == ["the answer's log-odds rise or fall"]
    assert of_sentence(sentence.replace("rise", "@").replace("fall", "rise").replace("@", "fall"))[0]


@pytest.mark.parametrize("before, without", [(0.6, (0.2, 0.4, 0.8, 0.6)), (0.9, (0.6, 0.89, 0.99)), (0.05, (0.01, 0.4, 0.05))])
def test_planted_layers_lower_and_raise_the_answer(before, without):
    layers = xr.DataArray(list(without), {"layer": range(len(without))})
    sentence = layers_sentence(xr.Dataset({"unedited": before, "without_layer": layers, "without_any": 0.0}))
    wrong, claims = of_sentence(sentence)
    assert not wrong and len(claims) == 1
    assert of_sentence(sentence.replace("lower", "@").replace("higher", "lower").replace("@", "higher"))[0]
    assert of_sentence(sentence.replace("still" if "still" in sentence else "about the same", "higher"))[0]
