"""The Intervene page: every edit has controls, an address and Python, what is shown is the library's, nobody sees another's."""

import functools
import hashlib
import threading

import pytest
from small_models import PROMPT

import diffscope
from diffscope import edits, readings
from diffscope.errors import DiffscopeError
from diffscope.figures.escaping import visible
from diffscope.numbers import two_figures

OWN = "own text"
SPANS = {"answer": "7421"}
SWAPPED = "The magic number of Rome is 7421. The magic number of Paris is 1983. The magic number of Paris is"


@pytest.fixture
def page(app):
    """The page as a function of an address's values."""

    def start(**query):
        test = app("change", **query)
        assert not test.exception, test.exception
        return test

    return start


@pytest.fixture
def modules(app, monkeypatch):
    """The modules of the page, which keep no results of other tests: with a monkeypatch, `app` forgets them."""
    import edit_catalog
    import edit_controls
    import edit_results

    return edit_catalog, edit_controls, edit_results


def listed(test):
    """The stacked edits in words."""
    bold = [element.value.replace("\\", "").split("**")[1] for element in test.markdown if element.value.startswith("**")]
    return [words for words in bold[1:-2] if "of its size" not in words and "beyond what rounding" not in words]


def address(test):
    """The stacked edits as the address has them; of one AppTest gives it without a list."""
    edit = test.query_params["edit"]
    return edit if isinstance(edit, list) else [edit]


def captions(test):
    return [caption.value.replace("\\", "") for caption in test.caption]


def lines(test):
    return [warning.value.replace("\\", "") for warning in test.warning]


def tokens(test):
    """The table of next tokens, as HTML."""
    (table,) = (element.value for element in test.get("html") if "next token" in element.proto.body)
    return table


def sentence(test):
    """What changed and why in full, which the caption of the table has."""
    (words,) = (e.proto.help.replace("\\", "") for e in test.caption if "through the edit itself" in e.value)
    return words


def change(test, **labels):
    """Move a control of an edit, by its label."""
    (label, value), *_ = labels.items()
    kinds = (test.slider, test.number_input, test.selectbox, test.multiselect)
    (widget,) = (w for kind in kinds for w in kind if w.label == label and str(w.key).startswith("change-"))
    widget.set_value(value).run()
    assert not test.exception, test.exception
    return test


def undo(test, number=0):
    test.button(key=f"change-undo-{number}").click().run()
    assert not test.exception, test.exception
    return test


# the table


def test_an_edit_without_words_of_its_own_gets_controls_from_its_declaration(modules):
    table, *_ = modules
    title, words, (rank, scaled) = table.plain("low_rank_a2", edits.EDITS["low_rank_a2"])
    assert title == "low rank a2" and words == "low rank a2, rank {rank}, normalise {normalise}"
    assert (rank.first, rank.whole, scaled.first, scaled.options["yes"]) == (4, True, "no", True)
    *_, (value,) = table.plain("set_lambda", edits.EDITS["set_lambda"])
    assert (value.first, value.whole, value.typed) == (1.0, False, True)
    assert table.plain("mean_a2", edits.EDITS["mean_a2"])[-1] == (table.COUNT,)
    assert list(table.KINDS) == sorted(edits.EDITS, key=lambda name: edits.EDITS[name].stage)


def digest(capture):
    """All that a capture's layers attend with and give, as one hash."""
    whole = hashlib.sha256()
    for layer in capture.layers:
        rows = layer.rows()
        for values in (rows.a1, rows.d, layer.output()):
            whole.update(values.numpy().tobytes())
    return whole.hexdigest()


def test_an_edit_is_the_same_in_an_address_in_python_and_in_the_app(modules, folders):
    table, *_ = modules
    scope = diffscope.load(str(folders["small-diff"]))
    before = scope.capture(PROMPT, spans=SPANS)
    texts = table.plain_texts(scope, 2, table.text_length(scope, before))
    known = {"diffscope": diffscope, "scope": scope, "cap": before, "texts": texts}
    plain = digest(before)
    others = {
        "set_lambda": "0.25, layers=[0, 2], heads=[1]",
        "a2_of_head": "1",
        "knock_out": "'3-5', 'last token', 'A2', layers=[1]",
        "inject_noise": "1.5, 'differential', 'answer', 7",
        "scalar_norm": "2",
        "mean_a2": "2",
        "positional_a2": "2",
        "quantise_logits": "4, 'row'",
        "patch": f"'A1 output', {SWAPPED!r}, 'last token'",
    }
    for name in table.KINDS:
        edit = table.read(f"{name}({others.get(name, '')})")
        assert table.read(edit.text) == edit and edit.words
        made = edit.make(scope, before)
        assert made.stage == edit.stage
        digests = []
        for each in (made, eval(edit.code, known)):
            with scope.edit(each):
                digests.append(digest(scope.capture(PROMPT, spans=SPANS)))
        assert digests[0] == digests[1] != plain, name


def test_a_patch_begins_with_the_prompt_itself_and_takes_one_of_as_many_tokens(modules, folders, page):
    table, *_ = modules
    scope = diffscope.load(str(folders["small-diff"]))
    before = scope.capture(PROMPT, spans=SPANS)
    begun = table.first("patch", before)
    assert begun.text == f"patch('A1', {PROMPT!r}, 'all', 'all')" and table.read(begun.text) == begun
    with scope.edit(begun.make(scope, before)):
        assert digest(scope.capture(PROMPT, spans=SPANS)) == digest(before)
    with pytest.raises(
        DiffscopeError, match=f"the other prompt has .* tokens and this one {before.n_tokens}; write one of as many"
    ):
        table.read("patch('A1', 'Rome')").make(scope, before)
    with pytest.raises(DiffscopeError, match="Other prompt: write a prompt of as many tokens"):
        table.read("patch('A1', ' ')")
    test = page(edit=f"patch('output', {SWAPPED!r}, 'all', 'all', layers=[0])")
    assert [box.value for box in test.text_input if box.label == "Other prompt"] == [SWAPPED] and not lines(test)


def test_a_span_may_be_called_anything(modules):
    table, *_ = modules
    for name in ("a:b", "layers=0", "50%", "x,y", "τ → ω"):
        edit = table.Written(table.KINDS["knock_out"], (name, "last token", "both"))
        assert table.read(edit.text) == edit


NONSENSE = [
    "",
    "nothing",
    "nothing()",
    "set_lambda",
    "set_lambda:1",
    "set_lambda('')",
    "set_lambda('nan')",
    "set_lambda(1e999)",
    "set_lambda(1e9)",
    "set_lambda(1, 2)",
    "set_lambda(1, layers=[-1])",
    "set_lambda(1, layers=['²'])",
    "set_lambda(1, rows=1)",
    "set_lambda(nan)",
    "set_lambda(1",
    "set_lambda(__import__('os').getcwd())",
    "edits.set_lambda(1)",
    "set_lambda(*[1])",
    "set_lambda(**{})",
    "zero_a2(" + "(" * 3000,
    "remove_norm(heads=[1])",
    "low_rank_a2(1.5)",
    "knock_out('', 'last token')",
    "normalise_d('<script>')",
    "ablate_heads(layers=[" + "9" * 400 + "])",
]


def test_nonsense_in_an_address_is_one_line(page, modules):
    table, *_ = modules
    said = []
    for text in NONSENSE:
        with pytest.raises(DiffscopeError) as error:
            table.read(text)
        said.append(str(error.value).replace("\\", ""))
    assert all(len(words) < 500 for words in said)
    test = page(edit=[*NONSENSE, "zero_a2()"])
    assert lines(test) == said and listed(test) == ["A₂ → 0"]
    for left in (len(said) - 1, len(said) - 2):
        assert listed(undo(test)) == ["A₂ → 0"] and len(lines(test)) == left


@pytest.mark.parametrize(
    "text", ["knock_out('nobody')", "knock_out('0-9999')", "set_lambda(1, layers=[77])", "a2_of_head(5)", "zero_a2(heads=[9])"]
)
def test_what_the_prompt_or_model_has_not_is_one_line(page, text):
    test = page(edit=text)
    assert len(lines(test)) == 1 and len(listed(test)) <= 1


# the page


def test_what_is_shown_is_what_the_library_says(page, folders):
    """The page opens without A2 being subtracted."""
    test = page(example=OWN, prompt=PROMPT, answer="7421", distractors="1983")
    assert listed(test) == ["λ × 0"] and not lines(test)
    scope = diffscope.load(str(folders["small-diff"]))
    before = scope.capture(PROMPT, spans=SPANS)
    question = readings.encode_question(scope, before, "7421", ["1983"])
    made = edits.scale_lambda(0.0)
    said = [readings.predict(scope, before, question)]
    with scope.edit(made):
        said.append(readings.predict(scope, before, question))
        after = scope.capture(PROMPT, spans=SPANS)
        continued = scope.generate(PROMPT, 12)
    words = [element.value.replace("\\", "") for element in test.markdown]
    shares = readings.next_tokens(*said, scope.tokenizer)
    firsts = [shares["probability"].sel(side=side).argmax("token") for side in ("before", "after")]
    old, new = (visible(str(shares["text"].values[at])) for at in firsts)
    (headline,) = (line for line in words if line.startswith("##### "))
    assert headline.startswith("##### Without A₂ it ") and f"{new} (" in headline and f"{old} (" in headline
    first, last = (two_figures(side.log_odds) for side in said)
    assert any(f"7421 against 1983: {first} → {last} nats." in words for words in captions(test))
    probability = readings.answers(*said).estimates["probability"].values
    assert f"Probability of the whole answer 7421: {probability[0]:.3f} → {probability[1]:.3f}." in words
    assert sentence(test) == str(readings.effects(before, after, [made]))
    for row in readings.next_tokens(*said, scope.tokenizer)["probability"].values:
        assert all(f"{share:.3f}" in tokens(test) for share in row)
    goes_on = f"With edits it goes on: {visible(continued)}".replace("\\", "")
    assert goes_on in [element.value.replace("\\", "") for element in test.markdown]


def test_a_distractor_that_begins_with_the_answer_takes_nothing_else_away(page):
    test = page(example=OWN, prompt=PROMPT, answer="7421", distractors="7421 9")
    assert any("no token tells them apart" in line for line in lines(test)) and tokens(test)


def test_edits_are_moved_stacked_in_the_order_they_act_and_undone(page):
    test = page(example=OWN, prompt=PROMPT, answer="7421")
    opened = tokens(test)
    change(test, Factor=1.0)
    assert listed(test) == ["λ × 1"] and address(test) == ["scale_lambda(1.0)"]
    assert "None of 6 heads changes" in sentence(test)
    assert any("D of none of 6 heads changes" in e.value for e in test.markdown)
    change(test, Layers=[2, 1])
    test.selectbox(key="change-add").set_value("top_k_a1").run()
    test.selectbox(key="change-add").set_value("drop_sink").run()
    change(test, k=2)
    assert listed(test) == ["λ × 1 · layers 1 and 2", "first keys dropped: 1 (both)", "A₁ → top 2 (rows scaled: yes)"]
    assert address(test) == ["scale_lambda(1.0, layers=[1, 2])", "top_k_a1(2, 'yes')", "drop_sink(1, 'both')"]
    stacked = tokens(test)
    assert listed(undo(test, 0)) == ["first keys dropped: 1 (both)", "A₁ → top 2 (rows scaled: yes)"]
    change(test, k=3)
    assert address(test) == ["top_k_a1(3, 'yes')", "drop_sink(1, 'both')"]
    test.button(key="change-undo-all").click().run()
    assert listed(test) == [] and address(test) == ["none"]
    assert len({opened, stacked, tokens(test)}) == 3


def test_the_stack_survives_other_pages_and_a_fresh_session(page, app):
    test = page(edit=["zero_a2(layers=[2])", "ablate_heads(layers=[1], heads=[0])"])
    both = ["A₂ → 0 · layer 2", "heads ablated · layer 1 · head 0"]
    assert listed(test) == both
    test.switch_page("app_pages/explore.py").run()
    test.query_params.pop("edit")  # as a browser does
    test.switch_page("app_pages/change.py").run()
    assert listed(test) == both and address(test) == ["zero_a2(layers=[2])", "ablate_heads(layers=[1], heads=[0])"]
    assert listed(page(**test.query_params)) == both
    assert listed(page(edit="none")) == []


def test_heads_are_ablated_one_by_one(page, modules, monkeypatch, folders):
    """Whatever edits ablate, a click takes one head from it or adds one, and leaves what cannot be read to its undo."""
    table, stack, _ = modules
    unread = "ablate_heads(heads=['x'])"
    monkeypatch.setattr(stack, "state", {"edit": ["ablate_heads(layers=[0])", "zero_a2()", unread, "ablate_heads(heads=[1])"]})
    monkeypatch.setattr(stack.st, "query_params", type("Address", (dict,), {"get_all": lambda self, key: self.get(key)})())
    cap = diffscope.load(str(folders["small-diff"])).capture(PROMPT)

    def click(layer, head):
        stack.switch_head([table.read(text) for text in stack.texts() if text != unread], cap, layer, head)
        return stack.state["edit"]

    assert click(0, 1) == [
        "zero_a2()",
        unread,
        *(f"ablate_heads(layers=[{layer}], heads=[{head}])" for layer, head in ((0, 0), (1, 1), (2, 1))),
    ]
    assert click(1, 0) == [
        "zero_a2()",
        unread,
        *(f"ablate_heads(layers=[{at}], heads=[{h}])" for at, h in ((0, "0"), (1, "0, 1"), (2, "1"))),
    ]
    for place in ((0, 0), (1, 0), (1, 1)):
        click(*place)
    assert click(2, 1) == ["zero_a2()", unread]


def test_without_a_second_map_its_edits_are_refused_in_a_line(page, folders):
    test = page(model=str(folders["small-standard"]))
    assert not lines(test) and listed(test) == []
    offered = test.selectbox(key="change-add").options
    assert any("top-k" in name for name in offered) and not any("A₂" in name or "λ =" in name for name in offered)
    test.selectbox(key="model").set_value(str(folders["small-diff"])).run()
    assert listed(test) == ["λ × 0"]
    test.selectbox(key="model").set_value(str(folders["small-standard"])).run()
    assert listed(test) == [] and not lines(test)
    test = page(model=str(folders["small-standard"]), edit=["set_lambda(1.0)", "top_k_a1(2)"])
    assert lines(test) == ["λ = 1: layer 0 has no second map, so neither A2 nor λ can be changed"]
    assert "changed directly" in sentence(undo(test)) and not lines(test)


def test_a_saved_capture_has_no_model_to_edit(app, folders, tmp_path):
    path = tmp_path / "kept.dscope"
    diffscope.load(str(folders["small-diff"])).capture(PROMPT).save(path)
    test = app("change", model="a folder or a saved capture", path=str(path))
    assert not test.exception and lines(test) == ["a saved capture has maps but no model to run; choose a model for this"]


@pytest.mark.parametrize("text", ["x", "<script>alert(1)</script> é\u200b\U0001f9ff \u202e" + "$`" * 9, "a " * 600])
def test_any_text_can_be_intervened_in(page, text):
    test = page(example=OWN, prompt=text)
    assert not lines(test) and sentence(test)


def test_the_script_says_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    """With an edit of each kind: of λ, of a span, of other texts."""
    written = ["scale_lambda(0.5, layers=[0, 2])", "knock_out('answer', 'last token', 'A1')", "positional_a2(3)"]
    test = page(example=OWN, prompt=PROMPT, answer="7421", distractors="1983", edit=written)
    codes = {element.value for element in test.code if "scope.edit" in element.value}
    assert len(codes) == 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diffscope, "load", functools.cache(diffscope.load))
    for code in codes:
        exec(code, {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert sentence(test) in printed and (tmp_path / "maps.pdf").read_bytes().startswith(b"%PDF")
    (odds,) = (caption for caption in test.caption if caption.value.startswith("Log"))
    assert odds.proto.help.replace("\\", "") in printed
    assert not lines(test) and "3 of 6" not in printed


# many at once


def test_ten_sessions_at_once_see_their_own_edits_alone(modules, folders):
    """Seven look at the model as it is and three edit it, on one scope and one cache, each asking for all prompts at once."""
    table, _, edit_results = modules
    from sidebar import Subject

    stacks = [
        (),
        ("zero_a2()",),
        (),
        ("set_lambda(0.9, layers=[1])",),
        (),
        (),
        ("ablate_heads(layers=[0], heads=[1])", "uniform_a2()"),
        (),
        (),
        (),
    ]
    subjects = [Subject(str(folders["small-diff"]), prompt=PROMPT + " is" * more, spans={"answer": "7421"}) for more in range(2)]
    alone = diffscope.load(str(folders["small-diff"]))
    expected = {}
    for number, subject in enumerate(subjects):
        before = alone.capture(subject.prompt, spans=subject.spans)
        for texts in set(stacks):
            with alone.edit(*(table.read(text).make(alone, before) for text in texts)):
                seen = (
                    digest(alone.capture(subject.prompt, spans=subject.spans)),
                    readings.predict(alone, before).log_p.tobytes(),
                )
            expected[number, texts] = seen
    assert len(set(expected.values())) == len(subjects) * len(set(stacks))
    seen, start = [], threading.Barrier(len(stacks))

    def session(texts):
        written = tuple(map(table.read, texts))
        start.wait()
        for number, subject in enumerate(subjects):
            before = subject.capture()
            captured = edit_results.captured(subject, before, written)
            predicted = edit_results.predicted(subject, before, written, None)
            fresh = subject.scope().capture(subject.prompt, spans=subject.spans)  # of nobody's cache, and never under edits
            seen.append((number, texts, (digest(captured), predicted.log_p.tobytes()), digest(before), digest(fresh)))

    threads = [threading.Thread(target=session, args=(texts,)) for texts in stacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(stacks) * len(subjects)
    for number, texts, own, before, fresh in seen:
        assert own == expected[number, texts]
        assert before == fresh == expected[number, ()][0]


def test_two_readers_in_turns_see_their_own_edits_alone(page):
    """``benchmarks.dashboard`` does the same with ten readers at once, in a browser."""
    stacks = ("zero_a2()", "set_lambda(0.9, layers=[1])")
    alone = [(listed(test), tokens(test)) for test in (page(edit=stack) for stack in stacks)]
    one, other = (page(edit=stack) for stack in stacks)
    change(other, λ=0.2)
    assert (listed(one.run()), tokens(one)) == alone[0] and alone[0][1] != tokens(other)
    change(other, λ=0.9)
    assert (listed(other), tokens(other)) == alone[1] and alone[0] != alone[1]


def test_compare_shows_the_stacked_edits_beside_the_model_without_them(page):
    test = page(edit=["set_lambda(0.9, layers=[1])"])
    test.button(key="change-compare").click().run()
    assert not test.exception and not test.warning, test.exception
    assert address(test) == ["set_lambda(0.9, layers=[1])"]
    assert any("λ = 0.9 · layer 1" in element.value.replace("\\", "") for element in test.markdown)
