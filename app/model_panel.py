"""A panel that opens a model from a folder, the hub or an upload, checks it first, and says what can be done with it.

It lies over whatever page is looked at, as long as the page's address says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import blocks
import streamlit as st
from access import rules
from background import Job, background
from cache import opened, outlined, stamp_of
from catalog import SessionModel, add_session_model, cards, resolve, session_models
from file_picker import FORMAT, choose_file, own_prompts
from messages import escape_markdown, show_errors
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx
from uploads import File, accept
from url_state import PANEL, bound

from diffscope.conformance import Report, check
from diffscope.errors import DiffscopeError, ModelNotFound
from diffscope.figures.escaping import short_name, visible
from diffscope.hypotheses import TESTS, Settings, forecast
from diffscope.hypotheses.gathering import checkpoint_names
from diffscope.hypotheses.rules import CHECKPOINTS
from diffscope.models.outline import check_memory
from diffscope.numbers import counted, duration
from diffscope.render import size_in_words
from diffscope.tasks.encoding import encode_prompts as in_tokens
from diffscope.tasks.encoding import require_answers

FOLDER = "a folder"
HUB = "the hub"
UPLOAD = "an upload"
LISTED = "the list"
WORDS = {
    FOLDER: ("Its folder", "/path/to/model", "A folder with config.json, weights as .safetensors, and the tokenizer's files."),
    HUB: ("Its id on the hub", "OWNER/NAME", "First only headers of its files are fetched, to say how large it is."),
}
CALLED = "my-model"
READ = (
    "Read are config.json, weights as .safetensors, and the tokenizer's files, as save_pretrained writes them: of any decoder of "
    "transformers, and of the published implementations of differential attention. Then each layer is checked against the "
    "model's own output."
)
USUAL = 1000  # tokens of a prompt
LONG = 60.0  # seconds: a check that takes longer is asked for
CODE = (
    "This model needs code that comes with it ({code}). Such code can do on this machine whatever you can: read your files, send "
    "them away, delete them. It is not run unless you type the model's name again. Do so only if you trust who wrote it."
)
OWN_PROMPTS = (
    {
        "name": "cat",
        "prompt": "My cat is Tom. My dog is Rex. The name of my cat is",
        "answer": " Tom",
        "distractors": ["Rex"],
        "spans": {"answer": "Tom", "needles": "My dog is Rex.", "query": "The name of my cat is"},
    },
    {
        "name": "dog",
        "prompt": "My cat is Mia. My dog is Bo. The name of my dog is",
        "answer": " Bo",
        "distractors": ["Mia"],
        "spans": {"answer": "Bo", "needles": "My cat is Mia.", "query": "The name of my dog is"},
    },
)
FEW = 5  # prompts that are made up to see whether they can be: one at each depth
#: what tests of a kind lack if the model is all there is, and how to run them or to give what is lacking
NEEDS = {
    "model": ("", "Tests: choose it as the model."),
    "pair": (
        "a standard model beside it",
        "Tests: choose the standard model that it is matched with beside it. Both need the same tokenizer.",
    ),
    "checkpoints": (
        f"{CHECKPOINTS} checkpoints along its training",
        "Put the checkpoints of its training into checkpoints/step-N of its folder, as diffscope train leaves them.",
    ),
    "cohort": ("a trained cohort", "Tests: give the folder of a cohort that diffscope train made."),
}
state = st.session_state


def choose_model() -> tuple[str, SessionModel] | None:
    """What a model is called, and the model; None while something is missing, which is said."""
    sources = [UPLOAD, *([FOLDER] if rules().paths else []), *([HUB] if rules().hub else []), LISTED]
    first = FOLDER if FOLDER in sources and "your_model-folder" in st.query_params else UPLOAD
    st.caption(READ)
    source = st.radio("Your model is in", sources, horizontal=True, **bound("your_model-source", default=first))
    if source == UPLOAD:
        return _uploaded()
    if source == LISTED:
        name = st.selectbox("Model", [*cards(), *session_models()], **bound("your_model-listed"))
    else:
        label, example, words = WORDS[source]
        key = "your_model-folder" if source == FOLDER else "your_model-id"
        name = st.text_input(label, **bound(key), placeholder=example, on_change=lambda: state.update(_typed=state[key])).strip()
        if not name:
            st.caption(words)
        elif source == FOLDER and not os.path.isdir(os.path.expanduser(name)):
            raise ModelNotFound(f"there is no folder {name!r}; give an id of the hub as one")
        elif source == HUB and name not in (
            state.get("_typed", "").strip(),
            *session_models(),
        ):  # an address alone fetches nothing
            st.caption(f"The address of this page names {escape_markdown(name)}.")
            if not st.button("Look it up on the hub", key="your_model-fetch"):
                return None
            state["_typed"] = name
    return (name, session_models().get(name, SessionModel(name))) if name else None


def _uploaded() -> tuple[str, SessionModel] | None:
    """A model from files; those before are removed as soon as there are others, and not when another page was looked at."""
    files = st.file_uploader(
        "Its files: .safetensors, config.json, and those of its tokenizer",
        accept_multiple_files=True,
        key="your_model-files",
        on_change=lambda: state.update(_given=True),
        help=f"At most {rules().upload_bytes / 2**20:,.0f} MiB in all. Nothing is unpacked and no code is run. The files are "
        "removed when this session ends.",
    )
    name = st.text_input("Name", **bound("your_model-name", default=CALLED), max_chars=40).strip() or CALLED
    label = f"{name} (uploaded)"
    if state.pop("_given", False) or (files and label != state.get("_label")):
        discard()
        if files:
            _keep(label, [File(file.name, file.getvalue()) for file in files])
    if state.get("_refusal"):
        st.warning(escape_markdown(state["_refusal"]))
    upload = state.get("_upload")
    if upload is None or not upload.there:
        st.button(f"Try it with {next(iter(cards()))}", key="your_model-try", on_click=try_example) if cards() else None
        return None
    label = state["_label"]
    if not files:  # given before another page was looked at
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(escape_markdown(label))
            st.button("Remove", key="your_model-remove", on_click=discard)
    return label, session_models().get(label, SessionModel(str(upload.folder), upload))


def try_example() -> None:
    """Choose the first model of the list."""
    state["your_model-source"] = LISTED
    state["your_model-listed"] = next(iter(cards()))


def discard() -> None:
    """Remove the upload before, and what was said of it."""
    state.pop("_refusal", None)
    before = state.pop("_upload", None)
    if before is not None:
        before.remove()


def this_session() -> Callable[[], bool]:
    """What says whether the page of this session is still open."""
    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        return lambda: True
    return partial(runtime.get_instance().is_active_session, context.session_id)


def _keep(label: str, files: list[File]) -> None:
    """Keep an upload, or why it was refused."""
    state["_label"] = label
    try:
        state["_upload"] = accept(files, label.removesuffix(" (uploaded)"), rules().upload_bytes, this_session())
    except DiffscopeError as error:
        state["_refusal"] = str(error)


@dataclass(frozen=True)
class Checked:
    """How fast a model is, and what the check found once it was made."""

    speed: forecast.Speed
    report: Report | None = None


def show_outline(label: str, model: SessionModel) -> bool | None:
    """How large a model is before it is loaded; whether its own code is to be run, None where it is not to be opened."""
    facts = outlined(model.name, stamp_of(model.name))
    kind = escape_markdown(facts.kind or "a model of timm")
    st.markdown(
        f"**{escape_markdown(short_name(label))}** · {kind} · {facts.parameters:,} parameters · "
        f"{size_in_words(facts.nbytes)} in memory"
    )
    free = check_memory(facts)
    st.caption(f"{size_in_words(free)} of memory are free.")
    if not facts.code:
        return False
    if not rules().hub:
        st.warning(escape_markdown(f"It needs code of its own ({', '.join(facts.code)}), and no code is run here."))
        return None
    st.warning(escape_markdown(CODE.format(code=", ".join(facts.code))))
    typed = st.text_input(
        "Type the model's name to run its code", key="your_model-trust", placeholder="not run", autocomplete="off"
    )
    return True if typed.strip() == model.name else None


def show_model(label: str, model: SessionModel) -> None:
    """Open and check a model when its button is pressed, and show what came out."""
    trust = show_outline(label, model)
    if trust is None:
        return
    model = SessionModel(model.name, model.upload, trust)
    key = ("your_model", model.name, stamp_of(model.name), trust)
    timed = state.setdefault("_timed", {}).get(key)
    loaded = None if timed is None else opened(*key[1:])
    told = st.empty()
    if timed is not None:
        told.info(f"The check will take {forecast.of_check(loaded, timed.speed).words}.")
    checked = background(
        (key, timed is not None),
        "your_model-open",
        "Open and check" if timed is None else "Check it",
        lambda: partial(work, loaded=loaded or opened(*key[1:]), timed=timed),
        primary=True,
    )
    if checked is None:
        return
    told.empty()
    if checked.report is None:  # it takes long, and is asked for
        state["_timed"][key] = checked
        st.rerun()
    if label not in cards():
        add_session_model(label, model)
    show_checked(label, model, checked)


def work(job: Job, loaded, timed: Checked | None) -> Checked:
    """Time a model, and check it if that is quick or was asked for, as a job's work."""
    job.report(0, 1, "timing short prompts")
    speed = timed.speed if timed else forecast.measured_speed(loaded)
    ahead = forecast.of_check(loaded, speed)
    if ahead.seconds > LONG and timed is None:
        return Checked(speed)
    words = f"the check takes about {duration(max(ahead.seconds, 1))}"
    return Checked(speed, check(loaded, progress=lambda done, total, what: job.report(done, total, f"{words} · {what}")))


def show_checked(label: str, model: SessionModel, checked: Checked) -> None:
    """What the check found, what can be done with the model, and what that takes."""
    loaded = opened(model.name, stamp_of(model.name), model.trusted)
    blocks.show_check(checked.report)
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Open in Explore", key="your_model-look", type="primary", on_click=partial(look_at, label)):
            st.switch_page("app_pages/explore.py", query_params={})
        st.caption("It is in the list of models on every page, as long as this session lasts.")
    differential = any(row["λ"] is not None for row in checked.report.layers)
    show_forecast(loaded, checked.speed)
    show_tests(loaded, model, differential)
    show_own_prompts(loaded)


def show_forecast(loaded, speed: forecast.Speed) -> None:
    """Time and memory of what can be done, before it is."""
    st.markdown("#### What it takes")
    most = min(rules().tokens, loaded.max_length or rules().tokens)
    key = "your_model-tokens"
    if (state.get(key) or 0) > most:  # of a model with more positions
        state[key] = most
    tokens = (
        st.number_input("Tokens of a prompt", 1, most, None, step=100, **bound(key, default=min(USUAL, most)), width=160) or most
    )
    settings = Settings()
    standard = "a model as large as this one beside it"
    ahead = {
        "the check": forecast.of_check(loaded, speed),
        f"a capture of {tokens:,} tokens": speed.capture(int(tokens)),
        f"all tests of one model ({settings.prompts} prompts, {settings.untrained} untrained models)": forecast.of_tests(
            speed, ["model"], settings
        ),
        f"those with {standard}, as well": forecast.of_tests(speed, ["pair"], settings),
    }
    rows = [
        {
            "what": what,
            "time": f"about {duration(max(each.seconds, 1))}",
            "memory besides the model": size_in_words(each.nbytes),
            "": "" if each.fits else "more than is free",
        }
        for what, each in ahead.items()
    ]
    blocks.show_table(rows)


def show_tests(loaded, model: SessionModel, differential: bool) -> None:
    """Which tests can be run on the model, and what the others lack."""
    st.markdown("#### Tests")
    of_model = lacking_of_model(loaded, differential)
    for needs, (lacks, how) in NEEDS.items():
        if needs == "checkpoints" and len(checkpoint_names(resolve(model.name))) >= CHECKPOINTS:
            lacks, how = NEEDS["model"]
        if of_model is not None and (
            needs in ("model", "checkpoints") or (needs == "pair" and (loaded.tokenizer is None or loaded.crosses))
        ):
            lacks, how = of_model
        tests = [test for test in TESTS.values() if test.needs == needs]
        count = counted(len(tests), "test")
        title = f"{count} lack{'' if len(tests) > 1 else 's'} {lacks}" if lacks else f"✓ {count} can be run"
        with st.expander(escape_markdown(title), key=f"your_model-tests-{needs}"):
            st.markdown(escape_markdown(how))
            st.markdown("\n".join(f"- {escape_markdown(test.id)}: {escape_markdown(test.question)}" for test in tests))


def lacking_of_model(scope, differential: bool) -> tuple[str, str] | None:
    """What a model itself lacks for the tests that need no other, and how to give it; None where it is nothing."""
    if scope.crosses:
        return "one side: they are of tokens that look at one another", "Look at its maps in Explore, or measure them in Python."
    if scope.tokenizer is None:
        return "a tokenizer: prompts are text", "Put its tokenizer.json beside the weights, and open it again."
    if not differential:
        return (
            "a second map: this is standard attention",
            "Choose it on Tests as the standard model beside a differential one.",
        )
    try:
        Settings(prompts=FEW).prompts_for(scope)
    except DiffscopeError as error:
        return f"prompts that can be made for its tokenizer ({error})", "Give prompts of your own, below and on Tests."
    return None


def show_own_prompts(loaded) -> None:
    """How to give prompts of one's own, and whether a file of them is right for this model."""
    st.markdown("#### Prompts of your own")
    st.caption(FORMAT)
    example = "".join(f"{json.dumps(prompt, ensure_ascii=False)}\n" for prompt in OWN_PROMPTS)
    st.code(json.dumps(OWN_PROMPTS[0], ensure_ascii=False), language="json", wrap_lines=True)
    st.download_button(
        "Example file", example, "my-prompts.jsonl", "application/jsonl", key="your_model-example", on_click="ignore"
    )
    file = choose_file("Check a prompts file", "your_model-prompts")
    if file is None:
        return
    with show_errors():
        prompts = in_tokens(loaded.tokenizer, own_prompts(file.name, file.content))
        rows = [
            {
                "prompt": visible(prompt.city),
                "tokens": len(prompt.ids),
                "answer": visible(str(loaded.tokenizer.decode(prompt.answer))),
                "spans": ", ".join(f"{name}: {len(at)}" for name, at in prompt.spans.items() if at),
            }
            for prompt in prompts
        ]
        blocks.show_table(rows, 8)
        try:
            require_answers(prompts)
        except DiffscopeError as error:
            st.warning(escape_markdown(f"They can be looked at. Tests need prompts, {error}"))
        else:
            count = counted(len(prompts), "prompt")
            st.success(f"They are right ({count}). Give the same file on the page Tests to test the model on them.")


def look_at(label: str) -> None:
    """Look at a model on every page, and close the panel."""
    state["model"] = label
    close_panel()


def close_panel() -> None:
    """Take the panel away."""
    st.query_params.pop(PANEL, None)


@st.dialog("Open a model", width="large", on_dismiss=close_panel)
def show_panel() -> None:
    """Show the choice of a model, and once it is chosen what its files and its check say."""
    with show_errors():
        chosen = choose_model()
        if chosen is not None:
            show_model(*chosen)
