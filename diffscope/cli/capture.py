"""``diffscope capture``: run a model on a prompt and keep what its attention was computed from."""

from pathlib import Path
from typing import Annotated

import typer

from diffscope.cli.options import (
    DecoderPrompt,
    Device,
    Dtype,
    Json,
    KeySpan,
    Model,
    Prompt,
    PromptFile,
    Span,
    check_out,
    read_capture,
)
from diffscope.cli.output import note, say, show_json, show_table, working

EXAMPLE = (
    "diffscope capture --model mini-diff \\",
    '  --prompt "Magic numbers. Paris 7421. Rome 2174. Paris" \\',
    "  --span answer=7421 --out paris.dscope",
)

Out = Annotated[Path | None, typer.Option(metavar="FILE.dscope", help="Keep the capture, for `diffscope measure FILE.dscope`.")]


def command(
    model: Model = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    span: Span = None,
    decoder_prompt: DecoderPrompt = None,
    key_span: KeySpan = None,
    out: Out = None,
    as_json: Json = False,
    device: Device = None,
    dtype: Dtype = None,
):
    """Capture a prompt: how faithful the capture is, the λ of each layer, and what the model says next."""
    from diffscope.capture.repr import lengths
    from diffscope.storage.tensors import check_capture_suffix

    check_out(out)
    if out is not None:
        check_capture_suffix(out)
    given = (model, prompt, prompt_file, span, device, dtype)
    capture = read_capture(None, *given, decoder_prompt=decoder_prompt, key_span=key_span)
    if out is not None:
        with working(f"saving {out}"):
            capture.save(out)
    lam = capture.lam.mean([dim for dim in capture.lam.dims if dim != "layer"])
    fidelity = capture.fidelity
    if as_json:
        show_json(
            {
                "model": capture.model_name,
                "family": capture.family,
                "tokens": capture.tokens,
                "spans": capture.key_sets,
                **({} if capture.key_prompts is None else {"keys": {"tokens": capture.key_tokens, "spans": capture.key_spans}}),
                "fidelity": {name: fidelity[name].values for name in fidelity.data_vars},
                "lambda": lam.values,
                "next": [{"token": token, "probability": probability} for token, probability in capture.next],
                "saved": out,
            }
        )
        return
    keys = "" if capture.key_prompts is None else f", {lengths(capture.key_prompts)} of another side"
    tokens = f"{lengths(capture.prompts)}{keys}"
    say(f"{capture.model_name} ({capture.family}): {capture.n_layers} layers, {capture.n_heads} heads, {tokens}")
    say("how far each rebuilt attention output is from the model's own, and λ averaged over queries, then heads:")
    in_float32 = [] if fidelity["error_float32"].isnull().all() else [fidelity["error_float32"]]
    columns = [*(fidelity[name] for name in ("error", "tolerance")), *in_float32, fidelity["rows"], lam]
    kinds = [] if capture.key_prompts is None else [capture.kinds]
    first = [fidelity["layer"].values.tolist(), *kinds]
    rows = zip(*first, *(column.values.tolist() for column in columns), strict=True)
    told = ("yes" if decided else "no" for decided in fidelity["decided"].values)
    headers = [
        "layer",
        *(["kind"] if kinds else []),
        "error",
        "tolerance",
        *(["in float32"] if in_float32 else []),
        "rows",
        "λ",
        "pairing is certain",
    ]
    show_table(headers, ([*row, word] for row, word in zip(rows, told)))
    for reason, layers in capture.undecided.items():
        say(f"not decided in layers {', '.join(map(str, layers))}: {reason}")
    say()
    show_table(["next token", "probability"], ((repr(token), float(probability)) for token, probability in capture.next))
    if out is not None:
        note(f"saved {out}")
