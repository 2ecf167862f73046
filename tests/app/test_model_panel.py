"""The panel that opens a model: checked and listed, or refused in a line; and what tests it is ready for."""

import json
import tempfile
from importlib import import_module

import pytest
from looks import at_rest, fine
from small_models import PROMPT

from diffscope.conformance import checks
from diffscope.hypotheses import forecast
from diffscope.models.outline import outline

FILES = "your_model-files"


def page(app, below="training", /, **query):
    """The panel over a page, by default one that has little to draw."""
    return fine(app(below, open="model", **{f"your_model-{name}": value for name, value in query.items()}))


def press(test, key):
    """Press a button, and wait until nothing runs."""
    return at_rest(fine(test.button(key=f"your_model-{key}").click().run()))


def lines(test):
    """What the page says beside its controls."""
    kinds = (test.markdown, test.caption, test.warning, test.info, test.success)
    return " ".join(element.value.replace("\\", "") for kind in kinds for element in kind)


def table(test, column):
    (frame,) = (frame.value for frame in test.dataframe if column in frame.value)
    return frame


def can_open(test):
    return any(button.key == "your_model-open" for button in test.button)


def groups_of(test):
    return [expander.label.replace("\\", "") for expander in test.expander if "tests" in expander.label]


def files_of(folder):
    return [(file.name, file.read_bytes(), "") for file in folder.iterdir() if file.suffix in (".json", ".safetensors")]


def test_a_folder_is_opened_checked_listed_and_looked_at(app, folders):
    folder = str(folders["small-diff"])
    test = page(app, "explore", source="a folder")
    assert "config.json" in lines(test) and not can_open(test)
    fine(test.text_input(key="your_model-folder").set_value(folder).run())
    assert f"{outline(folder).parameters:,} parameters" in lines(test)
    press(test, "open")
    assert "outputs of all 3 layers that were looked at are rebuilt" in lines(test)
    layers = table(test, "verdict")
    assert layers["layer"].tolist() == [0, 1, 2] and (layers["error"] <= layers["allowed"]).all()
    assert all("read rightly" in words for words in layers["verdict"]) and "two maps each" in layers["what is read"][0]
    assert "a capture of 1,000 tokens" in table(test, "time")["what"].tolist()
    assert not can_open(test)
    press(test, "look")
    (view,) = [element for element in test.get("bidi_component") if b"small-diff" in element.proto.bytes][:1]
    assert test.selectbox(key="model").value == folder and view


def test_a_standard_model_lacks_a_second_map_and_says_what_to_do(app, folders):
    test = press(page(app, source="the list", listed=str(folders["small-standard"])), "open")
    assert "one map each" in table(test, "verdict")["what is read"][0]
    lacking = groups_of(test)
    assert len(lacking) == 4 and all("lack" in words for words in lacking)
    assert "11 tests lack a second map: this is standard attention" in lacking
    assert "as the standard model beside a differential one" in lines(test)


def test_a_long_check_waits_for_a_yes_and_names_a_layer_that_is_not_what_it_claims_to_be(app, folders, monkeypatch):
    monkeypatch.setattr(forecast, "of_check", lambda scope, speed: forecast.Forecast(7200.0, 2**20))
    wrong = ("fail", "second map", "changing A2 does not change the logits", (1,))
    monkeypatch.setattr(checks, "check_second_map", lambda run, *_: run.report.add(*wrong))
    test = press(page(app, source="the list", listed=str(folders["small-diff"])), "open")
    assert "about 2.0 h" in lines(test) and not [frame for frame in test.dataframe if "verdict" in frame.value]
    assert test.button(key="your_model-open").label == "Check it"
    press(test, "open")
    verdicts = table(test, "verdict")
    assert [("does not fit" in words) for words in verdicts["verdict"]] == [False, True, False]
    assert "changing A2" in verdicts["remark"][1] and "1 of 3 layers" in lines(test)


@pytest.mark.parametrize("folder", ["/nowhere", "/etc", "~nobody/x", "a\0b", "<script>alert(1)</script>", "x" * 5000])
def test_what_is_no_model_is_one_line(app, folder):
    test = page(app, source="a folder", folder=folder)
    assert len(test.warning) == 1 and "\n" not in test.warning[0].value and not can_open(test)


def test_a_model_that_is_too_large_is_not_opened(app, folders, monkeypatch):
    outlines = import_module("diffscope.models.outline")  # the one that the page will use: each test imports the app anew
    monkeypatch.setattr(outlines, "free_memory", lambda device: 10.0)
    test = page(app, source="the list", listed=str(folders["small-diff"]))
    assert "are free" in test.warning[0].value and not can_open(test)


def test_code_of_a_model_is_run_only_when_its_name_is_typed(app, folders, tmp_path, monkeypatch):
    for file in folders["small-diff"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tmp_path / "config.json"
    own = {"model_type": "my-own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    config.write_text(json.dumps(json.loads(config.read_text()) | own))
    ran = tmp_path.parent / "ran"
    code = f"""
from pathlib import Path
from diffscope.models import DiffConfig, DiffForCausalLM
Path({str(ran)!r}).touch()
class Config(DiffConfig): model_type = "my-own"
class Model(DiffForCausalLM): config_class = Config
"""
    (tmp_path / "own.py").write_text(code)
    test = page(app, source="a folder", folder=str(tmp_path))
    assert "own.Model" in test.warning[0].value and not can_open(test)
    fine(test.text_input(key="your_model-trust").set_value("yes").run())
    assert not can_open(test) and not ran.exists()
    fine(test.text_input(key="your_model-trust").set_value(str(tmp_path)).run())
    assert not ran.exists()
    assert "all 3 layers" in lines(press(test, "open")) and ran.exists()
    assert "all 3 layers" not in lines(page(app, source="a folder", folder=str(tmp_path)))  # another session


def test_an_upload_is_checked_and_looked_at_and_its_place_is_not_shown(app, folders, tmp_path, monkeypatch):
    import uploads

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(uploads.TRIAL, "outline", lambda folder: outline(str(folder)))  # in this process
    test = page(app, "explore", source="an upload")
    fine(test.file_uploader(key=FILES).set_value(files_of(folders["small-diff"])).run())
    press(test, "open")
    assert "all 3 layers" in lines(test) and str(tmp_path) not in lines(test)
    press(test, "look")
    assert test.selectbox(key="model").value == "my-model (uploaded)"
    assert not any(str(tmp_path) in code.value for code in test.code) and any("'my-model'" in code.value for code in test.code)
    fine(test.selectbox(key="model").set_value("open a model…").run())
    assert "all 3 layers" in lines(test) and list(tmp_path.iterdir())  # another page takes nothing away
    fine(test.file_uploader(key=FILES).set_value([("evil.pkl", b"\x80\x04.", "")]).run())
    assert "is a pickle" in test.warning[0].value.replace("\\", "")
    assert not list(tmp_path.iterdir())  # the one before was replaced
    test.switch_page("app_pages/explore.py").run()
    assert not test.exception and "my-model (uploaded)" not in test.selectbox(key="model").options


def test_it_is_told_what_tests_can_run_and_whether_own_prompts_are_right(app, folders):
    from model_panel import OWN_PROMPTS

    test = press(page(app, source="the list", listed=str(folders["small-diff"])), "open")
    ready, *lacking = groups_of(test)
    assert "11 tests can be run" in ready or "prompts that can be made for its tokenizer" in ready
    assert "6 tests lack a standard model beside it" in lacking and "18 tests lack a trained cohort" in lacking
    assert "noise-symmetry" in lines(test) and "Is D sparser than A1?" in lines(test)
    assert json.dumps(OWN_PROMPTS[0], ensure_ascii=False) in [code.value for code in test.code]
    own = {"name": "<b>cat</b>", "prompt": PROMPT, "answer": " 7421", "distractors": ["1983"], "spans": {"answer": "7421"}}

    def tried(*prompts):
        file = "".join(f"{json.dumps(prompt)}\n" for prompt in prompts).encode()
        return fine(test.file_uploader(key="your_model-prompts").set_value(("my.jsonl", file, "")).run())

    assert "They are right (1 prompt)" in lines(tried(own))
    assert "7421" in table(test, "answer")["answer"][0]
    assert "each with an answer" in lines(tried({"prompt": PROMPT}))
    assert "expected a field 'prompt'" in lines(tried({"text": PROMPT}))
    assert "is not in the prompt" in lines(tried(own | {"spans": {"answer": "9999"}}))


def test_the_example_file_is_right(app, mini_diff, tmp_path):
    from model_panel import OWN_PROMPTS

    from diffscope.tasks import read_prompts
    from diffscope.tasks.encoding import encode_prompts, require_answers

    file = tmp_path / "my.jsonl"
    file.write_text("".join(f"{json.dumps(prompt)}\n" for prompt in OWN_PROMPTS))
    assert len(require_answers(encode_prompts(mini_diff.tokenizer, read_prompts(file)))) == len(OWN_PROMPTS)
