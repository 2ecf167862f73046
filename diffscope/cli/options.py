"""The words that mean the same in every command, and the capture they describe."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

import diffscope
from diffscope.cli.output import note, working
from diffscope.errors import DiffscopeError, PromptError, SpanError

Model = Annotated[str | None, typer.Option(metavar="NAME|FOLDER|HUB-ID", help="A bundled model, a folder, or a hub id.")]
Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt itself.")]
PromptFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A UTF-8 text file whose whole content is the prompt; .json: a chat, or token ids."),
]
Span = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TEXT|START:STOP",
        help="A named part of the prompt: its text, or a range of tokens; NAME:=… of other spans: rest:=~answer. Repeatable.",
    ),
]
DecoderPrompt = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="The decoder's text, of a model whose encoder reads the prompt. It follows the start token."
    ),
]
KeySpan = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=TEXT|START:STOP", help="A named part of what cross-attention looks at. Repeatable."),
]
Statistics = Annotated[
    str, typer.Option(metavar="A,B", help="Statistics or kinds of them, separated by commas; --list names them.")
]
Layer = Annotated[int | None, typer.Option(min=0, help="One layer, counted from 0 as the model does.")]
Head = Annotated[int | None, typer.Option(min=0, help="One head, counted from 0.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Device = Annotated[str | None, typer.Option(help="Where to run the model: cpu, cuda, cuda:1.")]
Dtype = Annotated[
    Literal["float32", "float64", "bfloat16", "float16"] | None,
    typer.Option(help="Precision to run in; by default the model's."),
]
SavedCapture = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE.dscope]", help="A saved capture, instead of a model and a prompt.", show_default=False),
]


OfKind = Annotated[
    Literal["self", "cross", "encoder"] | None,
    typer.Option(help="Layers of one kind, of a capture with cross-attention."),
]


def read_capture(
    saved, model, prompt, prompt_file, span, device, dtype, of_kind=None, *, decoder_prompt=None, key_span=None, scope=None
):
    """Open the saved capture, or capture the prompt; return its layers of one kind, by default of all.

    The model is `scope` if it is loaded already.
    """
    if saved is not None:
        if any((model, prompt, prompt_file, span, device, dtype, decoder_prompt, key_span)):
            raise DiffscopeError(f"{saved} is a capture already; leave out --model, prompts, spans, --device and --dtype")
        capture = diffscope.open(saved)
        if not isinstance(capture, diffscope.Capture):
            raise DiffscopeError(
                f"{saved} is not a capture but a {type(capture).__name__}; in Python: diffscope.open({str(saved)!r})"
            )
    else:
        scope = scope or read_scope(model, device, dtype)
        given = read_prompt(prompt, prompt_file)
        content = read_both_sides(scope, given, decoder_prompt)
        spans = read_spans(span or [], prompt=given if decoder_prompt is None else decoder_prompt)
        key_spans = read_spans(key_span or [], "--key-span", given)
        scope.encode(content, spans, embedded=True)  # refuses a batch
        with working("capturing"):
            capture = scope.capture(content, spans=spans, key_spans=key_spans)
    print_warnings(capture.facts)
    return capture if of_kind is None else capture.of_kind(of_kind)


def read_both_sides(scope, content, decoder_prompt):
    """Return the prompt, or the prompt of an encoder with the text of its decoder."""
    if decoder_prompt is None:
        return content
    if not scope.has_encoder:
        raise PromptError(f"{scope.name} is no encoder with a decoder; leave --decoder-prompt out")
    if not isinstance(content, str):
        raise PromptError("--decoder-prompt goes with a text; of other prompts, give decoder_input_ids in the file")
    return {"input_ids": content, "decoder_input_ids": decoder_prompt}


def read_scope(model, device, dtype):
    """Load the model that --model names."""
    check_model(model)
    placed = {key: value for key, value in {"device": device, "dtype": dtype}.items() if value is not None}
    return diffscope.load(model, **placed)


def check_model(model):
    """Refuse to go on without --model."""
    if not model:
        raise DiffscopeError("no model given; name one with --model, or list the bundled ones with: diffscope models")


def read_statistics(statistics):
    """Return the names in --statistics."""
    names = [name.strip() for name in statistics.split(",") if name.strip()]
    if not names:
        raise DiffscopeError("--statistics names no statistic; for example --statistics entropy,gini")
    return names


def print_warnings(facts):
    """Print the warnings and edits that a result carries to stderr."""
    for about in ("warnings", "edits"):
        if about in facts:
            note(f"{about}: {facts[about]}")


def read_prompt(prompt, prompt_file):
    """Return the text of --prompt or of the file of --prompt-file; of a .json file what it holds."""
    if (prompt is None) == (prompt_file is None):
        raise PromptError("the prompt has to come from one place; give either --prompt TEXT or --prompt-file FILE")
    if prompt is not None:
        return prompt
    try:
        text = prompt_file.read_text(encoding="utf-8-sig")  # without the mark that some editors put first
    except UnicodeDecodeError:
        raise PromptError(f"{prompt_file} is not UTF-8 text; convert it first") from None
    if prompt_file.suffix.lower() != ".json":
        if text.endswith("\n"):
            note(f"the prompt ends in a line break, as {prompt_file} does")
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{prompt_file} is broken JSON ({error}); mend it, or give text in a file that ends in .txt") from None


def read_spans(options, flag="--span", prompt=""):
    """Return spans by name, as --span or another option has them: a text, a slice of tokens, or an expression of other spans.

    Raises SpanError if one says nothing, or is text of the prompt and a slice of tokens too.
    """
    spans = {}
    for option in options:
        name, equals, value = option.partition("=")
        of_spans = name.endswith(":")
        name = name.removesuffix(":")
        if not (name and equals and value):
            raise SpanError(f"{flag} {option!r} is not NAME=TEXT, NAME=START:STOP or NAME:=SPANS; for example {flag} answer=7421")
        if name in spans:
            raise SpanError(f"{flag} {name!r} is given twice; give each span its own name")
        tokens = re.fullmatch(r"(\d+):(\d+)", value)
        if of_spans:
            spans[name] = diffscope.SpanExpr(value)
        elif tokens:
            if isinstance(prompt, str) and value in prompt:
                raise SpanError(
                    f"{flag} {option!r}: {value} is text of the prompt, and tokens {tokens[1]} to {int(tokens[2]) - 1}; "
                    f"give more of the text, or the tokens as {name}=0{value}"
                )
            spans[name] = slice(int(tokens[1]), int(tokens[2]))
        else:
            spans[name] = value
    return spans


def check_out(out):
    """Refuse to work on what could not be kept."""
    from diffscope.storage.atomic import check_target

    if out is not None:
        check_target(out)


def check_out_folder(out):
    """Refuse a file where --out is a folder that is made."""
    if out is not None and out.exists() and not out.is_dir():
        raise DiffscopeError(f"{out} is a file; give --out a folder that exists, or a new one")


def typed(ctx, names):
    """Return the options and arguments among these that were typed, as they are written."""
    given = [each for each in ctx.command.params if each.name in names and ctx.get_parameter_source(each.name).name != "DEFAULT"]
    return [each.opts[0] if each.opts[0].startswith("-") else each.name.upper() for each in given]


#: how prompts are drawn, which says nothing of prompts of one's own
DRAWING = ("length", "sentences", "questions", "looks", "near", "unanswerable", "template", "text", "field")


def refuse_drawing(ctx, *also):
    """Refuse options that say how prompts are drawn, beside prompts of one's own."""
    if given := typed(ctx, (*DRAWING, *also)):
        raise DiffscopeError(
            f"{', '.join(given)}: prompts of your own are taken as they are; leave {'it' if len(given) == 1 else 'them'} out, or "
            "--prompts FILE"
        )


def read_prompts_option(prompts, least):
    """Return how many prompts --prompts asks for, and the prompts themselves if it names a file of them."""
    from diffscope.tasks import read_prompts

    if not prompts.isdecimal():
        own = read_prompts(prompts)
        return len(own), own
    if int(prompts) < least:
        raise PromptError(f"--prompts {prompts} are too few; give {least} or more, or a file with prompts of your own")
    return int(prompts), None
