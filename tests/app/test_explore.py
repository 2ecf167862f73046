"""The Explore page: every input a reader can give ends in maps or in a sentence, never in a traceback."""

import json
import shutil
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from looks import fine
from safetensors.numpy import load
from small_models import APP, PROMPT

from diffscope.attention import Mask
from diffscope.stats import STATISTICS
from tests import tiny

OTHER, OWN = "a folder or a saved capture", "own text"


def charts(test):
    """The plotly charts of the page, as dictionaries."""
    return [json.loads(element.proto.spec) for element in test.get("plotly_chart")]


def buffer(test, component):
    """The bytes that a component of the page is given; one that is there ahead of what it shows has none."""
    given = [element.proto for element in test.get("bidi_component") if element.proto.component_name == component]
    (data,) = (proto.bytes for proto in given if proto.bytes)
    return data


def words(data):
    """What a buffer says beside its tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["view"])


def maps(test):
    """What the view of the maps is given, beside its tensors."""
    return words(buffer(test, "diffscope_attention"))


def titles(test):
    return [panel["title"] for panel in maps(test)["panels"]]


def heading(test):
    return maps(test)["title"]


def test_the_first_page_shows_the_strongest_head_and_says_what_the_model_is_and_is_asked(app, folders):
    import diffscope
    from diffscope.readings import signs

    test = fine(app())
    assert titles(test) == ["A₁", "A₂", "λ·A₂", "D = A₁ − λ·A₂"]
    cap = diffscope.load(str(folders["small-diff"])).capture(PROMPT, spans={"answer": "7421"})
    mass = cap.measure(["span_mass"], queries=[-1])["span_mass"].sel(map="D", span="answer", normalisation="share")
    best = mass.isel(query=0).argmax(...)
    assert f"L{int(best['layer'])}H{int(best['head'])}" in heading(test)
    assert not test.warning
    fidelity = next(frame.value for frame in test.dataframe if "tolerance" in frame.value)
    assert len(fidelity) == 3 and (fidelity["error"] <= fidelity["tolerance"]).all()
    said = [text.value.replace("\\", "") for text in [*test.caption, *test.markdown]]
    assert any(
        "small-diff" in text and "2 heads of differential attention" in text and "asks for “7421”" in text and "says “" in text
        for text in said
    )
    assert signs.of_span(cap, "answer") in said
    (negative,) = (about for _, about in maps(test)["sentence"] if about.startswith("How much of |D| on the answer"))
    assert "negative weights subtract" in negative
    asked = {name: test.query_params[name] for name in ("model", "example", "layer", "head", "query")}
    shown = {name: str(test.number_input(key=name).value) for name in ("layer", "head", "query")}
    assert asked == {"model": str(folders["small-diff"]), "example": "Two cities"} | shown  # whatever was chosen at first


def test_another_model_shows_its_own_maps(app, folders):
    test = fine(app())
    assert lead(test)
    fine(test.selectbox(key="model").set_value(str(folders["small-standard"])).run())
    assert titles(test) == ["A"]
    assert "small-standard" in heading(test)
    assert any("of standard attention" in text.value for text in test.markdown)
    assert any("no λ" in caption.value.replace("\\", "") for caption in test.caption)
    assert not lead(test)  # without a second map there is nothing to say of it


def test_the_python_of_the_page_draws_the_same(app, tmp_path, monkeypatch):
    from diffscope.figures import Figure

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Figure, "to_bytes", lambda self, suffix: self.data.attrs["model"].encode())
    codes = [code.value for code in fine(app(layer="1", head="0")).code if "diffscope.figures." in code.value]
    given = {}
    for code in codes:
        exec(code, given)
    assert len(codes) == 2 and "small-diff" in (tmp_path / "maps.pdf").read_text()
    assert given["dataset"]["span_mass"].sizes["layer"] == 3


def test_of_a_checkpoint_the_first_line_says_how_long_it_was_trained(app, folders, monkeypatch):
    import introduction

    name = str(folders["small-diff"])
    cap = SimpleNamespace(model_name=name, differential=True, layers=[], n_layers=3, n_heads=2)
    monkeypatch.setattr(introduction, "cards", lambda: {name: {"task": "text", "sentence": "CITY N."}})
    assert "attention, trained on Debian" in introduction.about_model(name, cap)
    assert "attention, after 0 steps of being trained on Debian" in introduction.about_model(f"{name}@0", cap)


SAID = {
    "its first choice": ([(" 7421", 0.97), (" Rome", 0.01)], [2], "The model says “·7421” next (97 %), which is the answer."),
    "another": (
        [(" <b>*Delhi*", 0.032), ("7421", 0.023)],
        [2],
        r"The model says “·\<b\>\*Delhi\*” next (3 %) rather than “·7421” (2 %).",
    ),
    "neither": (
        [(" Delhi", 0.032), (" Quito", 0.03)],
        [2],
        "The model says “·Delhi” next (3 %); “·7421” is not among its 2 likeliest tokens.",
    ),
    "several tokens": (
        [(" is", 0.5), (" 7421", 0.2)],
        [2, 3],
        "The model says “·is” next (50 %) rather than “·7421” (20 %), which is the first of the answer's 2 tokens.",
    ),
    "stated twice": ([(" 7421", 0.6)], [2, 4], "The model says “·7421” next (60 %), which is the answer."),
    "no answer": ([(" Delhi", 0.032)], [], "The model says “·Delhi” next (3 %)."),
    "no predictions": ([], [2], ""),
}


def test_the_first_line_says_what_the_model_says_next_beside_the_answer(app):
    from introduction import says_next

    for case, (following, answer, words) in SAID.items():
        spans = {"answer": answer} if answer else {}
        said = says_next(SimpleNamespace(next=following, spans=spans, tokens=["Paris", " is", " 7421", "."]))
        assert said.replace("\\(", "(").replace("\\)", ")") == words, case


def test_all_heads_of_a_small_model_are_sent_at_once_and_say_what_the_page_says(app, folders):
    """Each is what the page sends when that head is chosen, with its sentence, which is of the token that is looked at."""
    import diffscope
    from diffscope.readings import of_head as of_one_head

    test = fine(app())
    held = load(buffer(test, "diffscope_held"))
    assert sorted(held) == [f"{layer} {head}" for layer in range(3) for head in range(2)]
    place = [int(test.number_input(key=name).value) for name in ("layer", "head")]
    assert words(held["{} {}".format(*place)].tobytes())["sentence"] == maps(test)["sentence"] != []
    test.number_input(key="layer").set_value(0)
    fine(test.number_input(key="head").set_value(1).run())
    of_head = words(held["0 1"].tobytes())
    assert {name: value for name, value in of_head.items() if name != "state"} == {
        name: value for name, value in maps(test).items() if name not in ("state",)
    }
    cap = diffscope.load(str(folders["small-diff"])).capture(PROMPT, spans={"answer": "7421"})
    assert of_head["sentence"] == [[*part] for part in of_one_head(cap, 0, 1).parts]
    fine(test.number_input(key="query").set_value(3).run())
    (start, _), *_ = words(load(buffer(test, "diffscope_held"))["0 1"].tobytes())["sentence"]
    assert start.startswith("At token 3 L0H1 ")


def test_of_a_large_model_the_page_asks_for_the_heads_beside(app, folders, monkeypatch, tmp_path):
    import diffscope
    from diffscope.views import attention

    monkeypatch.setattr(attention, "MOST_HEADS", 1)
    test = fine(app(layer="1", head="0", query="3"))
    data = buffer(test, "diffscope_held")
    about = words(data)
    assert load(data) == {} and (about["beside"]["layer"], about["beside"]["head"]) == (1, 0)
    assert about["prompt"] == maps(test)["prompt"] and about["about"].startswith("token 3 ")
    own = {"example": OWN, "prompt": PROMPT, "layer": "1", "head": "0", "query": "3"}
    marked, bare = (words(buffer(fine(app(**own, **answer)), "diffscope_held"))["about"] for answer in ({"answer": "7421"}, {}))
    assert marked != bare  # what is held says where the answer is
    scope, held = diffscope.load(str(folders["small-diff"])), set()
    for name, factor in (("plain", 1.0), ("changed", 0.0)):
        with scope.edit(diffscope.edits.scale_lambda(factor)):
            scope.capture(PROMPT).save(tmp_path / f"{name}.dscope")
        test = fine(app(model=OTHER, path=str(tmp_path / f"{name}.dscope"), layer="1", head="0", query="3"))
        held.add(words(buffer(test, "diffscope_held"))["about"])
    assert len(held) == 2  # and of which capture the heads are


def test_an_address_restores_the_view(app, folders):
    test = fine(app(model=str(folders["small-diff"]), example="Again", layer="0", head="1", statistic="gini", query="3"))
    assert "L0H1" in heading(test)
    assert test.selectbox(key="example").value == "Again"
    assert test.selectbox(key="statistic").value == "gini"
    assert any("token 3" in caption.value.replace("\\", "") for caption in test.caption)


def test_an_address_that_names_nothing_real_is_the_first_page(app):
    test = fine(app(model="gone", layer="99", head="-3", statistic="nothing", query="100000"))
    assert "L0H0" in heading(test)


def test_of_an_answer_that_stands_several_times_one_place_is_chosen(app):
    test = fine(app(example=OWN, prompt=PROMPT, answer="magic"))
    (places,) = test.radio
    assert "stands 3 times" in places.label and "answer" not in spans(test) and not test.warning
    second = PROMPT.index("magic", PROMPT.index("magic") + 1)
    fine(places.set_value(str(second)).run())
    ((start, stop),) = spans(test)["answer"]
    assert "".join(maps(test)["tokens"][start:stop]).strip() == "magic"


def test_a_model_with_a_vocabulary_of_its_own_is_offered_the_examples_in_it(app, folders, tmp_path, monkeypatch):
    import diffscope
    from diffscope.cards import BUNDLED, bundled
    from diffscope.tasks.files import EXAMPLES, read_prompts

    of_copies = [card for card in bundled() if card["task"] == "copies"]
    own = tmp_path / "own"  # a model of a reader, which no card says the task of
    shutil.copytree(BUNDLED / of_copies[0]["name"], own)
    cards = [*diffscope.models.bundled(), *of_copies, {"name": str(own), "path": str(own), "attention": "v1", "checkpoints": []}]
    known = {"retrieval": diffscope.tasks.examples(), "text": [], "copies": list(read_prompts(EXAMPLES["copies"]))}
    monkeypatch.setattr(diffscope.models, "bundled", lambda: cards, raising=False)
    monkeypatch.setattr(diffscope.tasks, "examples", lambda kind="retrieval": known[kind])
    test = fine(app())
    assert test.selectbox(key="example").value == known["retrieval"][0].name
    test.selectbox(key="model").select(of_copies[0]["name"]).run()
    first = known["copies"][0]
    assert fine(test).selectbox(key="example").value == first.name and "small" not in test.markdown[0].value
    assert "31,008 parameters, 1 layer × 2 heads" in test.markdown[0].value
    assert f"asks for “{first.answer}”" in test.markdown[0].value
    assert {"triggers", "dormant"} <= {span["name"] for span in maps(test)["spans"]}
    test.selectbox(key="model").select(str(own)).run()
    assert fine(test).selectbox(key="example").value == first.name and f"asks for “{first.answer}”" in test.markdown[0].value
    test.selectbox(key="model").select(str(folders["small-diff"])).run()
    assert fine(test).selectbox(key="example").value == known["retrieval"][0].name


def test_changing_an_example_makes_it_the_readers_own(app):
    test = fine(app())
    area = next(area for area in test.text_area if area.key.startswith("_text"))
    fine(area.set_value("The magic number of Oslo is 7421. <b>bold</b> $x$").run())
    assert test.selectbox(key="example").value == OWN
    assert test.text_area(key="prompt").value.startswith("The magic number of Oslo")
    assert test.text_input(key="answer").value == "7421"
    assert "<b>" in "".join(maps(test)["tokens"])  # as data, which the view writes as text


def spans(test):
    return {span["name"]: span["ranges"] for span in maps(test)["spans"]}


def test_naming_spans_captures_nothing_again(app, monkeypatch):
    import background

    from diffscope.scope import Scope

    runs = []
    original = Scope.capture
    monkeypatch.setattr(background, "AT_ONCE", -1.0)  # where A2 works is not measured, for which the model is run
    monkeypatch.setattr(Scope, "capture", lambda self, *given, **more: runs.append(given) or original(self, *given, **more))
    asked = f"{PROMPT} It is"
    test = fine(app(example=OWN, prompt=asked))
    fine(test.text_input(key="answer").set_value("7421").run())
    assert "answer" in spans(test) and maps(test)["sentence"] and len(runs) == 1


def test_tokens_are_marked_as_spans(app):
    test = fine(app(example=OWN, prompt=PROMPT, spans=["answer:2-4", "odd one:7"]))
    assert spans(test)["answer"] == [[2, 5]] and spans(test)["odd one"] == [[7, 8]] and not test.warning
    test = fine(app(example=OWN, prompt=PROMPT, answer="7421", spans="answer:5-2"))
    assert [warning.value.replace("\\", "") for warning in test.warning] == [
        "the span 'answer:5-2' ends before it begins. The page is shown without it."
    ]
    ((start, stop),) = spans(test)["answer"]
    assert "".join(maps(test)["tokens"][start:stop]).strip() == "7421"


def test_tokens_that_are_marked_as_the_answer_are_asked_for_whatever_was_written(app, folders):
    import diffscope

    cap = diffscope.load(str(folders["small-diff"])).capture(PROMPT, spans={"answer": "7421"})
    places = {text: [at for at, token in enumerate(cap.tokens) if token.strip() == text] for text in ("1983", "Paris")}
    for text, positions in places.items():  # the example's answer is 7421; Paris is marked where it stands twice
        test = fine(app("change", spans=[f"answer:{at}" for at in positions], distractors="Rome, 1983"))
        against = {"1983": "against Rome:", "Paris": "against Rome and 1983:"}[text]
        assert any(f"the whole answer {text} {against}" in caption.value.replace("\\", "") for caption in test.caption)
        test.switch_page("app_pages/explore.py").run()
        assert f"asks for “{text}”" in fine(test).markdown[0].value


def test_a_misspelt_answer_is_a_warning_beside_the_maps_and_does_not_change_what_is_asked_for(app):
    test = fine(app(example=OWN, prompt=PROMPT, answer="7421"))
    assert test.selectbox(key="span").value == "answer"
    fine(test.text_input(key="answer").set_value("7422").run())
    (warning,) = test.warning
    assert "“7422” is not in your text: type the answer" in warning.value.replace("\\", "") and maps(test)
    assert test.selectbox(key="span").value == "context"
    fine(test.text_input(key="answer").set_value("7421").run())
    assert test.selectbox(key="span").value == "answer"
    fine(test.selectbox(key="span").set_value("irrelevant").run())
    fine(test.text_input(key="answer").set_value("1983").run())
    assert test.selectbox(key="span").value == "irrelevant"


def test_the_head_stays_where_the_reader_put_it_until_the_prompt_is_another(app, folders):
    test = fine(app())
    best = (test.number_input(key="layer").value, test.number_input(key="head").value)
    other = (1, 0) if best != (1, 0) else (1, 1)
    test.number_input(key="layer").set_value(other[0])
    test.number_input(key="head").set_value(other[1])
    fine(test.run())
    fine(test.number_input(key="query").set_value(3).run())
    assert f"L{other[0]}H{other[1]}" in heading(test)
    fine(test.selectbox(key="model").set_value(str(folders["small-standard"])).run())
    assert f"L{other[0]}H{other[1]}" in heading(test)
    fine(test.selectbox(key="model").set_value(str(folders["small-diff"])).run())
    fine(test.selectbox(key="example").set_value(OWN).run())
    test.text_area(key="prompt").set_value(f"{PROMPT} now")
    fine(test.text_input(key="answer").set_value("7421").run())
    asked = fine(app(example=OWN, prompt=f"{PROMPT} now", answer="7421"))
    assert heading(test) == heading(asked)


def test_beside_a_head_that_does_not_find_the_answer_one_that_gives_it_most_is_offered(app):
    test = fine(app())
    best = heading(test)
    assert "better" not in [button.key for button in test.button]
    for layer, head in ((0, 0), (0, 1)):
        test.number_input(key="layer").set_value(layer)
        fine(test.number_input(key="head").set_value(head).run())
        if heading(test) != best:
            break
    button = test.button(key="better")
    assert "the answer" in button.label and " % of |D|" in button.label
    fine(button.click().run())
    assert button.label.split()[0] in heading(test)


def test_the_offer_of_a_head_says_what_the_head_says_of_itself(app):
    test = fine(app(example=OWN, prompt=PROMPT, answer="Paris is 7421. The magic", layer="1", head="1"))
    button = test.button(key="better")
    amount, _, sign = button.label.partition(": ")[2].partition(" of |D|")
    assert sign.endswith("% of it negative")
    fine(button.click().run())
    assert f"{amount} of |D| is on it{sign}" in "".join(text for text, _ in maps(test)["sentence"])


def lead(test):
    """The line that says where A2 works; empty if there is none."""
    return next((text.value.replace("\\", "") for text in test.markdown if text.value.startswith("**Where A₂ works:**")), "")


def buttons(test):
    """Keys of the buttons that offer a head."""
    return [button.key for button in test.button if button.key in ("needing", "control", "better")]


@pytest.fixture(scope="module")
def bundled():
    """A bundled model and an example's text with its answer, which the model gives."""
    from diffscope.models.folders import locate
    from diffscope.tasks import examples

    example = examples()[0]
    return {"model": OTHER, "path": str(locate("mini-diff")[0]), "example": OWN, "prompt": example.text, "answer": example.answer}


def test_where_the_second_map_is_needed_is_said_and_shown_beside_its_control(app, bundled):
    test = fine(app(**bundled))
    assert lead(test) == (
        "**Where A₂ works:** without the A₂ of layer 0 the answer's probability is under 1 % instead of over 99 %; "
        "without that of layer 1 or 2 it is still over 99 %."
    )
    begun = heading(test)
    assert " L1H1 " in begun and buttons(test) == ["needing"]
    needing = test.button(key="needing")
    assert needing.label == "Show L0H0 at token 50 “88”: its A₂ is needed"
    assert needing.help.replace("\\", "") == (
        "Without the A₂ of L0H0 alone the answer's probability is under 1 %, and without that at token 50 alone under 1 %."
    )
    fine(needing.click().run())
    assert " L0H0 " in heading(test) and test.number_input(key="query").value == 50
    assert " A2 has 99 % of its weight on the token before, `Montreal`, and A1 2 %." in "".join(
        text for text, _ in maps(test)["sentence"]
    )
    assert buttons(test) == ["control"]
    control = test.button(key="control")
    assert control.label == "Show the control, L1H1 at the last token: layer 1 needs no A₂"
    assert control.help.startswith("It finds the answer: 96 % of |D|, 27 % of it negative")
    fine(control.click().run())
    assert heading(test) == begun and test.number_input(key="query").value == 95 and buttons(test) == ["needing"]
    fine(test.number_input(key="query").set_value(60).run())
    assert buttons(test) == ["needing"]  # wherever one is


@pytest.fixture
def planted(monkeypatch):
    """A function that has where A2 works read as it is given: probabilities without each layer, of 90 %, in need of L0H1."""
    import xarray as xr

    from diffscope import readings

    def plant(*without, **found):
        values = {
            "unedited": 0.9,
            "without_layer": ("layer", list(without)),
            "without_any": 0.0,
            "without_head": ("head", [0.8, 0.1]),
        }
        values |= {"without_token": 0.2}
        estimates = xr.Dataset(values, {"layer": range(len(without))}, {"layer": 0, "head": 1} | found)
        monkeypatch.setattr(readings, "where_a2_works", lambda *_, **__: readings.Reading("", estimates))

    return plant


def test_a_head_is_offered_at_the_token_that_is_looked_at_if_no_single_one_needs_its_second_map(app, planted):
    planted(0.1, 0.9, 0.9)
    test = fine(app(layer="2", head="0", query="5"))
    needing = test.button(key="needing")
    assert needing.label == "Show L0H1: its A₂ is needed" and "no single token of the prompt was found" in needing.help
    fine(needing.click().run())
    assert " L0H1 " in heading(test) and test.number_input(key="query").value == 5 and "needing" not in buttons(test)


@pytest.mark.parametrize("without, layers", [((0.1, 0.2, 0.91), {2}), ((0.1, 0.6, 0.89), {2}), ((0.1, 0.99, 0.8), set())])
def test_the_control_is_of_a_layer_without_whose_second_map_the_answer_is_as_likely(app, planted, without, layers):
    planted(*without, query=3)
    test = fine(app(layer="0", head="1", query="3"))
    offered = [int(button.label.partition(": layer ")[2][0]) for button in test.button if button.key == "control"]
    assert set(offered) == layers and not {"needing", "better"} & set(buttons(test))


def test_where_no_second_map_is_needed_it_says_so_and_offers_none(app, bundled):
    test = fine(app(**bundled | {"path": bundled["path"] + "@0"}))
    assert lead(test).startswith("**Where A₂ works:** the model does not give the answer (under 1 %), so there is nothing")
    assert not {"needing", "control"} & set(buttons(test))


def test_what_takes_long_waits_for_a_button(app, monkeypatch):
    import background

    from diffscope import readings

    asked = []
    monkeypatch.setattr(readings, "where_a2_works", lambda *given, **more: asked.append(given))
    monkeypatch.setattr(background, "AT_ONCE", -1.0)
    test = fine(app(example=OWN, answer="1983", prompt=PROMPT))
    (button,) = (button for button in test.button if button.key == "measure-where A₂ works")
    assert button.label.startswith("Measure where A₂ works (about ") and maps(test) and not lead(test) and not asked


def test_maps_are_there_if_what_a_second_map_does_cannot_be_measured(app, monkeypatch):
    from diffscope import DiffscopeError, readings

    def fail(*_, **__):
        raise DiffscopeError("no")

    monkeypatch.setattr(readings, "where_a2_works", fail)
    test = fine(app())
    assert maps(test) and [warning.value for warning in test.warning] == ["no"]


def test_maps_are_there_if_the_marked_answer_is_no_text(app, bundled):
    test = fine(app(**bundled | {"answer": "", "spans": ["answer:0"]}))  # <bos>, which covers no character
    assert spans(test)["answer"] == [[0, 1]] and not test.warning and not lead(test)


def test_what_the_first_view_says_is_measured_before_it(app, monkeypatch):
    from prepare import prepare_first_view

    from diffscope import readings

    prepare_first_view()
    monkeypatch.setattr(readings, "where_a2_works", None)
    assert lead(fine(app()))


def test_the_button_names_what_the_grid_of_this_run_shows(app):
    def label(test):
        return next(block.proto.popover.label for block in test.get("popover"))

    test = fine(app(example=OWN, prompt=PROMPT))
    assert not lead(test)  # where A2 works is asked of an answer
    assert label(test) == "Measure: attention on context tokens"
    fine(test.text_input(key="answer").set_value("7421").run())
    assert label(test) == "Measure: attention on the answer"
    fine(test.selectbox(key="question").set_value("Is it signed?").run())
    assert test.selectbox(key="statistic").value == "negative_share"
    assert label(test) == f"Measure: {STATISTICS['negative_share'].description}"


def test_a_chat_is_a_prompt_or_a_line_in_words(app):
    test = fine(app(example="a chat", chat="What is it?"))
    assert "begins with who speaks" in test.warning[0].value
    test = fine(app(example="a chat", chat="user: What is it?\nassistant: 7421"))
    assert maps(test) if not test.warning else "template" in test.warning[0].value


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_without_a_prompt_the_page_asks_for_one(app, text):
    test = fine(app(example=OWN, prompt=text))
    assert any("prompt" in info.value for info in test.info)


@pytest.mark.parametrize("text", ["x", "$" * 30])
def test_any_text_is_a_prompt(app, text):
    test = fine(app(example=OWN, prompt=text))
    assert maps(test)


def test_too_long_a_prompt_is_one_line_in_words(app):
    test = fine(app(example=OWN, prompt="many words " * 2000))
    assert len(test.warning) == 1 and "shorten it" in test.warning[0].value


def test_a_long_prompt_is_shown_in_bins(app):
    text = PROMPT + " is" * 600
    test = fine(app(example=OWN, prompt=text))
    assert "largest |value| of each" not in heading(test)  # which the view says itself, by how far one zooms
    assert maps(test)["bin"] == 2 and "detail" not in maps(test)


@pytest.mark.parametrize("path", ["/no/such/folder", "", "/etc", "/etc/hostname", "capture.dscope"])
def test_a_place_without_a_model_is_one_line_in_words(app, path):
    test = fine(app(model=OTHER, path=path))
    assert len(test.warning) + len(test.info) == 1


def test_a_folder_and_a_saved_capture_open(app, folders, tmp_path):
    import diffscope

    test = fine(app(model=OTHER, path=str(folders["small-diff"])))
    assert "small-diff" in heading(test)
    saved = tmp_path / "kept.dscope"
    diffscope.load(str(folders["small-diff"])).capture(PROMPT, spans={"answer": "7421"}).save(saved)
    test = fine(app(model=OTHER, path=str(saved)))
    assert "small-diff" in heading(test) and not lead(test)  # there is no model to run


@pytest.fixture
def rectangles(tmp_path):
    """A saved capture of an encoder-decoder: nine tokens of the encoder, five of the decoder."""
    import diffscope
    from tests import encoder_decoders

    scope = diffscope.load(encoder_decoders.model("bart"))
    cap = scope.capture(encoder_decoders.prompt("bart"), spans={"asked": [4]}, key_spans={"answer": [2, 3]})
    cap.save(tmp_path / "both.dscope")
    return cap, str(tmp_path / "both.dscope")


def test_a_folder_that_is_called_like_a_file_is_a_model(app, folders, tmp_path):
    folder = shutil.copytree(folders["small-standard"], tmp_path / "model.safetensors")
    assert titles(fine(app(model=OTHER, path=str(folder)))) == ["A"]


def test_cross_attention_is_shown_by_the_kind_of_layers(app, rectangles):
    cap, path = rectangles
    test = fine(app(model=OTHER, path=path))
    assert test.selectbox(key="kind").options == ["the encoder", "self-attention", "cross-attention"]
    assert maps(test)["tokens"] == cap.key_tokens and not test.warning
    test = fine(test.selectbox(key="kind").select("cross").run())
    mass = (
        cap.of_kind("cross").measure(["span_mass"], queries=[-1])["span_mass"].sel(span="answer", map="D", normalisation="share")
    )
    best = mass.isel(query=0, drop=True)
    place = best.isel(best.argmax(...))
    assert heading(test).endswith(f"L{int(place['layer'])}H{int(place['head'])}") and not test.warning
    assert (maps(test)["tokens"], maps(test)["keyTokens"]) == (cap.tokens, cap.key_tokens)
    np.testing.assert_allclose(heads(test), best.values, rtol=1e-5)
    assert any("prompt of 5 tokens looks at 9 tokens" in text.value for text in test.markdown)
    for part in ("Numbers", "Logits"):
        refused = fine(app(model=OTHER, path=path, kind="cross", part=part))
        (said,) = (info.value for info in refused.info)
        assert said.startswith(f"The part {part} is not made for cross-attention")
    assert not fine(app(model=OTHER, path=path, kind="self")).warning


def test_a_model_with_an_encoder_is_opened_with_a_text_for_each_side(app, tmp_path, monkeypatch):
    import access

    import diffscope
    from tests import encoder_decoders

    encoder_decoders.model("t5").save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    given = {"model": OTHER, "path": str(tmp_path), "example": OWN, "prompt": PROMPT, "answer": "7421", "decoder": "Rome is"}
    scope = diffscope.load(tmp_path)
    cap = scope.capture({"input_ids": PROMPT, "decoder_input_ids": "Rome is"}, key_spans={"answer": "7421"})
    test = fine(app(**given))
    assert (maps(test)["tokens"], maps(test)["keyTokens"]) == (cap.tokens, cap.key_tokens) and not test.warning
    for kind, tokens in (("self", cap.tokens), ("encoder", cap.key_tokens)):
        assert maps(fine(app(**given, kind=kind)))["tokens"] == tokens
    names = {}
    code = next(code.value for code in test.code if "of_kind('cross')" in code.value)
    exec(code.partition("\ndiffscope.figures")[0], names)
    assert names["cap"].key_spans == cap.key_spans and names["cap"].kinds == ["cross", "cross"]
    assert maps(fine(app(**given | {"decoder": ""})))["tokens"] == scope.capture(PROMPT).tokens
    access.rules.cache_clear()
    monkeypatch.setenv(access.MODELS, str(tmp_path))  # of which every model is offered by name
    offered = fine(app(**given | {"model": tmp_path.name}))
    assert (maps(offered)["tokens"], maps(offered)["keyTokens"]) == (cap.tokens, cap.key_tokens) and not offered.warning


def test_a_model_of_latents_says_how_it_is_looked_at(app, tmp_path):
    pytest.importorskip("diffusers", reason="needs diffusers, the extra 'audio'")
    from tests import stable_audio

    stable_audio.transformer().save_pretrained(tmp_path)
    test = fine(app(model=OTHER, path=str(tmp_path)))
    (said,) = (warning.value for warning in test.warning)
    assert "denoises latents and takes no text" in said and "cap.save keeps the capture" in said.replace("\\", "")


def heads(test):
    """The values of the grid of heads, as they are sent to the browser."""
    return load(buffer(test, "diffscope_heads"))["values"].tolist()


def test_a_capture_that_was_saved_again_is_measured_again(app, folders, tmp_path):
    import diffscope

    scope = diffscope.load(str(folders["small-diff"]))
    path, seen = tmp_path / "kept.dscope", []
    for prompt in (PROMPT, PROMPT.replace("Rome", "Oslo is not far, Rome")):
        scope.capture(prompt, spans={"answer": "7421"}).save(path)
        seen.append(heads(fine(app(model=OTHER, path=str(path), rows="mean of all"))))
    assert seen[0] != seen[1]


@pytest.fixture
def hybrid(folders, tmp_path):
    """A saved capture whose layers are numbered 1, 3 and 5."""
    import diffscope

    cap = diffscope.load(str(folders["small-diff"])).capture(PROMPT, spans={"answer": "7421"})
    layers = [replace(layer, layer=2 * layer.layer + 1) for layer in cap.layers]
    replace(cap, layers=layers).save(tmp_path / "hybrid.dscope")
    return tmp_path / "hybrid.dscope"


def test_layers_go_by_their_number_in_the_model(app, hybrid):
    import diffscope

    test = fine(app(model=OTHER, path=str(hybrid)))
    mass = diffscope.open(hybrid).measure(["span_mass"], queries=[-1])["span_mass"]
    values = mass.sel(map="D", span="answer", normalisation="share").isel(query=0).values
    layer, head = np.unravel_index(values.argmax(), values.shape)
    assert f"L{2 * layer + 1}H{head}" in heading(test)
    test.number_input(key="layer").set_value(5)
    assert "L5H0" in heading(fine(test.run())) and not test.warning
    box = test.number_input(key="layer")
    assert (box.min, box.max, box.step) == (1, 5, 2)
    fine(test.number_input(key="layer").set_value(2).run())
    assert [warning.value for warning in test.warning] == ["there is no layer 2; choose from 1, 3, 5"]


def test_positions_are_not_averaged(app):
    test = fine(app(statistic="argmax", rows="mean of all"))
    assert any("is not averaged" in warning.value for warning in test.warning)
    assert maps(test)


def test_memory_that_is_used_up_is_one_line(app, monkeypatch):
    import torch

    import diffscope.capture.capture

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(diffscope.capture.capture.Capture, "measure", fail)
    test = fine(app())
    assert [warning.value for warning in test.warning] == ["out of memory; use a shorter prompt, bfloat16 or fewer statistics"]


def test_without_any_bundled_model_the_page_says_what_to_do(app, monkeypatch):
    import streamlit as st

    import diffscope.models

    monkeypatch.setattr(diffscope.models, "bundled", list)
    st.cache_resource.clear()
    test = fine(app())
    assert any("diffscope train" in info.value for info in test.info)


def test_every_question_has_its_statistics_and_all_can_be_drawn(app, folders):
    from statistic_picker import QUESTIONS

    import diffscope

    names = [name for of_question in QUESTIONS.values() for name in of_question]
    assert len(names) == len(set(names))
    assert {s.name for s in STATISTICS.values() if s.kind in ("row", "branch")} <= set(names)
    cap = diffscope.load(str(folders["small-diff"])).capture(PROMPT, spans={"answer": "7421"})
    measured = cap.measure(names, queries=[-1])
    for name in names:
        assert diffscope.figures.heads(cap, statistic=name, measured=measured).plotly().data[0].z.shape == (3, 2)
    test = fine(app())
    for question, of_question in QUESTIONS.items():
        fine(test.selectbox(key="question").set_value(question).run())
        assert test.selectbox(key="statistic").options == [STATISTICS[name].description for name in of_question]
        assert not test.warning


def test_the_blocks_work_in_another_app(folders, monkeypatch):
    from streamlit.testing.v1 import AppTest

    monkeypatch.syspath_prepend(str(APP))

    def page(folder, prompt):
        import blocks

        import diffscope

        cap = diffscope.load(folder).capture(prompt, spans={"answer": "7421"})
        blocks.show_view(cap, layer=1, head=0)
        blocks.show_row(cap, layer=1, head=0, query=5)
        blocks.show_view(cap, layer=77, head=0, key="other")

    test = AppTest.from_function(page, args=(str(folders["small-diff"]), PROMPT), default_timeout=120).run()
    assert not test.exception
    assert [warning.value for warning in test.warning] == ["there is no layer 77; choose from 0 to 2"]


def test_a_long_row_is_cut_only_where_the_query_sees_no_other_key(app):
    from blocks.views import drawn_keys

    causal, full = (SimpleNamespace(n_keys=1500, mask=Mask(kind)) for kind in ("causal", "full"))
    assert drawn_keys(causal, 20, 512) == (0, 21) and drawn_keys(causal, 700, 512) == (189, 701)
    assert drawn_keys(full, 20, 512) == (0, 4096) and drawn_keys(full, 20, 1500) is None


def test_heads_are_those_of_the_layer(app, folders, tmp_path):
    import diffscope

    cap = diffscope.load(str(folders["small-diff"])).capture(PROMPT, spans={"answer": "7421"})
    wide = diffscope.load(tiny.own(heads=4)).capture(tiny.ids(cap.n_tokens))
    layers = (wide.layers[0], *cap.layers[1:])
    assert [layer.n_heads for layer in layers] == [4, 2, 2]
    replace(cap, layers=layers).save(tmp_path / "mixed.dscope")
    test = fine(app(model=OTHER, path=str(tmp_path / "mixed.dscope"), layer="0", head="0"))
    for layer, drawn in zip((0, 1), layers):
        test.number_input(key="layer").set_value(layer)
        test.number_input(key="head").set_value(3)
        fine(test.run())
        assert test.number_input(key="head").max == drawn.n_heads - 1 and f"L{layer}H" in heading(test)
        assert not test.warning
        test.number_input(key="head").set_value(0)
        fine(test.run())
