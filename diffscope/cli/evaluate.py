"""``diffscope evaluate``: does a model retrieve, and where does it look when it answers?"""

import math
from typing import Annotated

import typer

import diffscope
from diffscope.cli.options import Device, Dtype, Json, Model, check_model, read_prompts_option, refuse_drawing
from diffscope.cli.output import counting, say, show_json, show_table, working
from diffscope.errors import DiffscopeError, PromptError

EXAMPLE = (
    "diffscope evaluate --model mini-diff --sentences 4",
    "diffscope evaluate --model mini-diff --text my-texts.jsonl --near-duplicates",
    "diffscope evaluate --model FOLDER --prompts my-prompts.jsonl",
)

ROOM = 64  # positions for what is answered after the question
WANTED = {
    "exact": 'exact answers want the text that comes next, "answer": "…"',
    "log_odds": 'log-odds and chance want other answers, "distractors": ["…", …]',
    "on answer": 'the share of the answer wants to know where the text states it, "spans": {"answer": "…"}',
}
SPANS = ("sink", "answer", "needles", "context", "query")
NECESSARY = (WANTED["exact"], WANTED["on answer"])

Length = Annotated[int | None, typer.Option(min=32, help="Tokens a prompt; by default what a bundled model was trained on.")]
Sentences = Annotated[int, typer.Option(min=2, max=64, help="Sentences with a number in each prompt; one is asked for.")]
Questions = Annotated[int, typer.Option(min=1, max=64, help="How many of the cities are asked for, one after the other.")]
Prompts = Annotated[
    str, typer.Option(metavar="COUNT|FILE", help="How many prompts, over five depths; or a file of your own prompts.")
]
Looks = Annotated[int, typer.Option(min=10, help="On how many of the prompts attention is measured.")]
Near = Annotated[bool, typer.Option("--near-duplicates", help='Ask for "Old Paris" among "New Paris", "North Paris" and so on.')]
Unanswerable = Annotated[bool, typer.Option("--unanswerable", help='Ask for what no sentence states; right is "unknown".')]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help='The sentence; without, what the model was trained on, or " The magic number: {city} {number}."'
    ),
]
Text = Annotated[
    str | None,
    typer.Option(metavar="FILE|FOLDER|OWNER/NAME", help="Your own text around the needles: .txt, JSONL, Parquet, a data set."),
]
Field = Annotated[str | None, typer.Option(metavar="NAME", help="Which field of --text holds the text.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the prompts.")]


def command(
    ctx: typer.Context,
    model: Model = None,
    length: Length = None,
    sentences: Sentences = 4,
    questions: Questions = 1,
    prompts: Prompts = "200",
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
    """Score exact answers to unseen retrieval prompts, loss on text, and where the answering query looks by depth of the needle.

    Of your own prompts: exact answers, log-odds, and where the answering query looks, prompt by prompt. Exit status 1 where not
    all of them have answers and say where these are stated: the last lines say what is wanting, and how to give it.
    """
    check_model(model)
    count, own = read_prompts_option(prompts, 10)
    if own:
        refuse_drawing(ctx, "seed")
        with working(f"loading {model}"):
            scope = diffscope.load(model, device=device, dtype=dtype)
        _evaluate_own(model, scope, own, as_json)
        return
    if field is not None and text is None:
        raise DiffscopeError("--field says which field of --text holds the text; give --text too")
    if questions > 1 and (near or unanswerable):
        raise DiffscopeError(
            "--questions asks for what is stated, about other cities each; leave out --near-duplicates and --unanswerable"
        )
    facts = {"model": model, "seed": seed, "length": length, "needles": sentences, "questions": questions, "near": near}
    facts |= {"answerable": not unanswerable, "template": template, "text": text}
    _evaluate_drawn(facts, count, looks, field, device, dtype, as_json)


def _evaluate_drawn(facts, prompts, looks, field, device, dtype, as_json):
    """Evaluate a model on prompts that are drawn for it."""
    from diffscope.lab.accuracy import accuracy_of, exact_by_depth
    from diffscope.readings.retrieval import depths_of
    from diffscope.tasks import Backcopy, Recall, Retrieval, read_texts
    from diffscope.tasks.log_odds import logits_of
    from diffscope.tasks.sampling import DEPTHS, check_spread
    from diffscope.tasks.scoring import text_losses
    from diffscope.tasks.training_sentence import template_of

    answerable = facts["answerable"]
    check_spread(min(looks, prompts) if answerable else prompts)
    texts = None if facts["text"] is None else read_texts(facts["text"], field)
    with counting("evaluating", unit="%") as progress:
        progress(0, 100, f"loading {facts['model']}")
        scope = diffscope.load(facts["model"], device=device, dtype=dtype)
        progress(10, 100, "drawing prompts")
        facts["length"] = facts["length"] or _usual_length(facts["model"], scope)
        if (task := Backcopy()).speaks(scope.tokenizer):
            _evaluate_backcopy(scope, task, facts, prompts, looks, progress, as_json)
            return
        facts["template"] = facts["template"] or template_of(facts["model"])
        task = Retrieval(scope.tokenizer, held_out=True, template=facts["template"], texts=texts)
        drawn = _draw(task, prompts, facts)
        progress(15, 100, "answering")
        accuracy = accuracy_of(scope, drawn)
        scores = exact_by_depth(accuracy.right)
        progress(30, 100, "reading text")
        losses = text_losses(logits_of(scope.model), Recall(scope.tokenizer, texts), facts["length"], facts["seed"])
        table = None
        if answerable:
            seen = drawn[:looks]
            table = depths_of(
                scope,
                {(facts["length"], depth): seen[index :: len(DEPTHS)] for index, depth in enumerate(DEPTHS)},
                progress=lambda done, total: progress(40 + 60 * done / total, 100, f"measuring attention, {done} of {total}"),
            )
        else:
            progress(40, 100, "asking with and without evidence")
            evidence = _evidence(scope, task, min(looks, prompts), facts)
    facts["dtype"] = str(scope.model.dtype).removeprefix("torch.")
    if as_json:
        answers = {"answers": accuracy.as_dict()} if answerable else {"evidence": evidence}
        measured = {} if table is None else {"table": table["mass"].isel(length=0).to_dict()}
        show_json({**facts, **scores, **answers, "text_loss": losses, **measured})
        return
    _show_scores(facts, scores, losses, prompts, accuracy)
    if table is None:
        _show_evidence(evidence)
        return
    _show_attention(facts, table)


def _evaluate_backcopy(scope, task, facts, prompts, looks, progress, as_json):
    """Evaluate a model of the Bigram-Backcopy task: its losses, and how much attention first tokens get."""
    from diffscope.lab.copying import copying

    if any(facts[name] for name in ("template", "text", "near")) or not facts["answerable"] or facts["questions"] > 1:
        raise DiffscopeError(
            "a model of the Bigram-Backcopy task is asked nothing; leave out --near-duplicates, --unanswerable, --questions, "
            "--template and --text"
        )
    length = facts["length"]
    progress(30, 100, "scoring copies and measuring attention")
    scores, masses = copying(scope, task, length, prompts, min(looks, prompts), facts["seed"])  # (queries, layer, head, map)
    if as_json:
        kept = {name: facts[name] for name in ("model", "seed", "length")}
        show_json({**kept, "prompts": prompts, **scores._asdict(), "excess": scores.excess, "first_token": masses.to_dict()})
        return
    say(f"{facts['model']}: {scores.exact:.1%} exact copies after triggers, loss {scores.copied:.4f} nats a token (least 0)")
    least = f"least {scores.entropy:.4f}, so {scores.excess:.4f} above it"
    say(f"loss on all other tokens {scores.bigram:.4f} nats ({least}); {prompts} sequences of {length} tokens of Bigram-Backcopy")
    say()
    say("share of the weights' sizes that is on the first token, mean over queries and sequences")
    rows = []
    for layer in masses["layer"].values:
        for head in masses["head"].values:
            cells = masses.sel(layer=layer, head=head)
            shares = [
                float(cells.sel(queries=queries, map=kind)) for queries in cells["queries"].values for kind in cells["map"].values
            ]
            rows.append([int(layer), int(head), *(_rounded(share) for share in shares)])
    titles = [f"{kind}, {queries}" for queries in masses["queries"].values for kind in masses["map"].values]
    show_table(["layer", "head", *titles], rows)


def _rounded(share):
    return None if math.isnan(share) else f"{share:.3f}"


def _usual_length(model, scope):
    """Return the length that a bundled model's card is of, 256 for others, or the longest that a model has positions for."""
    trained = {card["name"]: card["scores"].get("tokens", card["positions"]) for card in diffscope.models.bundled()}
    usual = trained.get(model.partition("@")[0], 256)
    return usual if scope.max_length is None or model in trained else min(usual, scope.max_length - ROOM)


def _draw(task, prompts, facts):
    from diffscope.tasks import sampling

    others = facts["needles"] - 1
    if facts["near"] or not facts["answerable"]:
        kind = dict(slots=others, near=facts["near"], answerable=facts["answerable"])
        return sampling.controlled(task, prompts, facts["length"], others, facts["seed"], **kind)
    return sampling.draw(task, prompts, facts["length"], facts["needles"], facts["seed"], facts["questions"])


def _evaluate_own(model, scope, texts, as_json):
    """Evaluate a model on a user's own prompts: each by itself, and all together."""
    from diffscope.lab.accuracy import accuracy_of, check_fits, prompt_by_prompt
    from diffscope.stats.negative_mass import WHATEVER
    from diffscope.tasks import encode_prompts

    prompts = encode_prompts(scope.tokenizer, texts)
    check_fits(scope, prompts)
    answered = [prompt for prompt in prompts if prompt.answer]
    accuracy = accuracy_of(scope, answered) if answered else None
    with counting("measuring attention") as progress:
        rows = prompt_by_prompt(scope, prompts, progress)
    wanting = {what: [row["prompt"] for row in rows if row[column] is None] for column, what in WANTED.items()}
    wanting = {what: names for what, names in wanting.items() if names}
    if as_json:
        show_json({"model": model, "answers": accuracy and accuracy.as_dict(), "prompts": rows, "wanting": wanting})
    else:
        if accuracy:
            say(f"{accuracy.sentence}.")
        columns = list(dict.fromkeys(column for row in rows for column in row))
        table = [[_shown(row.get(column)) for column in columns] for row in rows]
        show_table([_titled(name) for name in columns], table)
        say(f"shares are of the last query, mean over heads, then layers; {WHATEVER[0].lower()}{WHATEVER[1:]}")
        for what, names in wanting.items():
            say(f"not measured of {', '.join(names)}: {what}")
    if any(what in wanting for what in NECESSARY):
        raise typer.Exit(1)


def _titled(column):
    """Return a column's title, which says what is a share of sizes and what is negative."""
    if column.startswith("negative on "):
        return f"negative part on {column.removeprefix('negative on ')}"
    return f"share of |D| on {column.removeprefix('on ')}" if column.startswith("on ") else column


def _shown(value):
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _show_scores(facts, scores, losses, prompts, accuracy):
    """Show exact answers and losses in words."""
    low, high = scores["interval"]
    kind = "near-duplicate cities" if facts["near"] else "cities"
    question = "one question" if facts["questions"] == 1 else f"{facts['questions']} questions, all to be answered"
    if facts["answerable"]:
        say(f"{accuracy.sentence}.")
    else:
        question = 'one question without an answer, right is "unknown"'
    source = f"text of {facts['text']}" if facts["text"] else "held-out documentation strings of Python's standard library"
    say(f"{facts['model']}: {scores['retrieval']:.1%} exact answers ({low:.1%} to {high:.1%}) of {prompts} prompts")
    say(f"{facts['length']} tokens, {facts['needles']} needles of {kind}, {question}; “{facts['template'].strip()}”; {source}")
    by_kind = f"{losses['hit']:.3f} on tokens that complete a 3-gram seen before, {losses['other']:.3f} on others"
    say(f"loss on plain text, nats a token: {by_kind}")


def _evidence(scope, task, prompts, facts):
    """Return mean log-odds of "unknown" by evidence, with sensitivity, bias and standard errors; or why there are none."""
    from diffscope.lab.training.grid import Grid, unknown_by_evidence

    grid = Grid((facts["length"],), (facts["needles"] - 1,), prompts, facts["template"])
    try:
        table = unknown_by_evidence(scope.model, task, grid, facts["seed"]).isel(length=0, distractors=0)
    except PromptError as error:  # these prompts have more sentences than the others
        return {"wanting": str(error)}
    means, errors = table.mean("prompt"), table.std("prompt", ddof=1) / math.sqrt(prompts)
    return {
        name: {
            str(grade): {"mean": float(mean), "standard_error": float(error)}
            for grade, mean, error in zip(table[name][table[name].dims[0]].values, means[name].values, errors[name].values)
        }
        for name in table.data_vars
    } | {"prompts": prompts}


EVIDENCE = {
    "nothing": "another city, nothing alike",
    "qualifier": "the same qualifier, another city",
    "city": "the same city, another qualifier",
    "stated": "the city asked for",
    "stated 2": "the city asked for, twice",
    "stated 4": "the city asked for, four times",
}


def _show_evidence(evidence):
    say()
    if "wanting" in evidence:
        say(f"not weighed by evidence: {evidence['wanting']}")
        return
    say(f'log-odds of "unknown" against all numbers of the text, nats, {evidence["prompts"]} prompts ± standard error;')
    say("sensitivity: without an answer minus with it, of one prompt; bias: their mean")

    def cell(name, grade):
        value = evidence[name].get(grade)
        return "" if value is None else f"{value['mean']:+.2f} ± {value['standard_error']:.2f}"

    rows = [[words, *(cell(name, grade) for name in ("unknown", "sensitivity", "bias"))] for grade, words in EVIDENCE.items()]
    show_table(['"Old Paris" is asked for; its number is stated of', "log-odds", "sensitivity", "bias"], rows)


def _show_attention(facts, table):
    """Show where the last query looks by depth, in each normalisation."""
    from diffscope.readings.signs import amount, of_depths
    from diffscope.tables import depths

    table = table.assign_attrs(distractors=facts["needles"] - 1)
    say(f"attention of the last query, mean over {table.attrs['averaged_over']}; ± is half of the 95 % interval over prompts")
    if words := of_depths({facts["model"]: table}, SPANS):
        say(words)
    for normalisation in table["normalisation"].values.tolist():
        shown = depths(table, normalisation=normalisation, rows=SPANS)
        say()
        show_table([f"{amount('D', normalisation)}: depth", *shown.header[2:]], [row[1:] for row in shown.rows])
