"""``diffscope evaluate``: does a model retrieve, and where does it look when it answers?"""

from typing import Annotated

import typer

import diffscope
from diffscope.cli.options import Device, Dtype, Json, Model, check_model
from diffscope.cli.output import counting, say, show_json, show_table, working
from diffscope.errors import DiffscopeError

EXAMPLE = (
    "diffscope evaluate --model mini-diff --needles 4",
    "diffscope evaluate --model mini-diff --text my-texts.jsonl --near",
)

Length = Annotated[int | None, typer.Option(min=32, help="Tokens a prompt; by default what a bundled model was trained on.")]
Needles = Annotated[int, typer.Option(min=2, max=64, help="Sentences with a number in each prompt; one is asked for.")]
Prompts = Annotated[int, typer.Option(min=10, help="Prompts to answer, spread over five depths.")]
Looks = Annotated[int, typer.Option(min=10, help="Of those, prompts whose attention is measured.")]
Near = Annotated[bool, typer.Option("--near", help='Ask for "Old Paris" among "New Paris", "North Paris" and so on.')]
Unanswerable = Annotated[bool, typer.Option("--unanswerable", help='Ask for what no sentence states; right is "unknown".')]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help='The sentence, " The magic number: {city} {number}." without; cohorts learn " {city} {number}."'
    ),
]
Text = Annotated[
    str | None,
    typer.Option(metavar="FILE|FOLDER|OWNER/NAME", help="Your own text around the needles: .txt, JSONL, Parquet, a data set."),
]
Field = Annotated[str | None, typer.Option(metavar="NAME", help="Which field of --text holds the text.")]
Seed = Annotated[int, typer.Option(help="Seed of the prompts.")]


def command(
    model: Model = None,
    length: Length = None,
    needles: Needles = 4,
    prompts: Prompts = 200,
    looks: Looks = 100,
    near: Near = False,
    unanswerable: Unanswerable = False,
    template: Template = None,
    text: Text = None,
    field: Field = None,
    seed: Seed = 20_000,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Json = False,
):
    """Exact answers to unseen retrieval prompts, loss on text, and where the answering query looks by depth of the needle."""
    from diffscope.lab import scoring
    from diffscope.tasks import Recall, Retrieval, read_texts
    from diffscope.tasks.retrieval import TEMPLATE

    if field is not None and text is None:
        raise DiffscopeError("--field says which field of --text holds the text; give --text too")
    scoring.check_spread(prompts if unanswerable else min(looks, prompts))
    texts = None if text is None else read_texts(text, field)
    check_model(model)
    trained = {card["name"]: card["positions"] for card in diffscope.models.bundled()}
    length = length or trained.get(model.partition("@")[0], 256)
    with working(f"loading {model}"):
        scope = diffscope.load(model, device=device, dtype=dtype)
        task = Retrieval(scope.tokenizer, held_out=True, template=template or TEMPLATE, texts=texts)
        if near or unanswerable:
            kind = dict(slots=needles - 1, near=near, answerable=not unanswerable)
            drawn = scoring.controlled(task, prompts, length, needles - 1, seed, **kind)
        else:
            drawn = scoring.draw(task, prompts, length, needles, seed)
        scores = scoring.score(scoring.exact_answers(scope.model, drawn))
        losses = scoring.text_losses(scope.model, Recall(scope.tokenizer, texts), length, seed)
    facts = {"model": model, "dtype": str(scope.model.dtype).removeprefix("torch."), "seed": seed, "length": length}
    facts |= {"needles": needles, "near": near, "answerable": not unanswerable, "template": task.template, "text": text}
    if not as_json:
        _show_scores(facts, scores, losses, prompts)
    if unanswerable:
        if as_json:
            show_json({**facts, **scores, "text_loss": losses})
        return
    with counting("measuring attention") as progress:
        table = scoring.span_by_depth(scope, drawn[:looks], progress)
    mean = table["mean"]
    if as_json:
        show_json({**facts, **scores, "text_loss": losses, "table": mean.to_dict()})
        return
    say(f"attention of the last query, mean over heads, then layers; {table.attrs['averaged_over']}")
    spans = ["sink", "answer", "needles", "context", "query"]
    for normalisation in mean["normalisation"].values:
        _show(mean, table["standard_error"], "D", str(normalisation), spans)


def _show_scores(facts, scores, losses, prompts):
    """Exact answers and losses in words."""
    low, high = scores["interval"]
    kind = "near-duplicate cities" if facts["near"] else "cities"
    question = "one question" if facts["answerable"] else 'one question without an answer, right is "unknown"'
    source = f"text of {facts['text']}" if facts["text"] else "text held out of the bundled models' training"
    say(f"{facts['model']}: {scores['retrieval']:.1%} exact answers ({low:.1%} to {high:.1%}) of {prompts} prompts")
    say(f"{facts['length']} tokens, {facts['needles']} needles of {kind}, {question}; {source}")
    by_kind = f"{losses['hit']:.3f} on tokens that complete a 3-gram seen before, {losses['other']:.3f} on others"
    say(f"loss on plain text, nats a token: {by_kind}")


def _show(mean, error, kind, normalisation, spans):
    say()
    chosen = dict(map=kind, normalisation=normalisation)
    rows = []
    for depth in mean["depth"].values:
        cells = [[float(x.sel(depth=depth, span=span, **chosen)) for x in (mean, error)] for span in spans]
        rows.append([f"{depth:.0%}", *(f"{value:.3f} ± {spread:.3f}" for value, spread in cells)])
    show_table([f"{kind}, {normalisation}: depth", *spans], rows)
