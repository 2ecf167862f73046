"""Turn arms of a trained cohort, with one seed, into the bundled models with their cards.

``python -m tools.publish runs/laptop --seed 0`` publishes DIFF, standard attention with maps as wide as DIFF's, and standard
attention with as few heads as DIFF has, as ``mini-diff``, ``mini-standard`` and ``mini-double-width``. Of a cohort without these
arms it publishes all arms; of a cohort of plain text DIFF, as ``mini-text``. Weights are stored in half precision, and scored as
they are stored. The example prompts are drawn anew with the models' tokenizer.

DIFF's checkpoints along training come with it, or those that ``--checkpoint ARM@STEP`` names; the model itself is the last step.
Plain text has none. Weights that would make the wheel larger than 15 MB are refused before anything is replaced.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from diffscope.cards import BUNDLED, CARD_FILE
from diffscope.errors import DiffscopeError
from diffscope.lab.accuracy import accuracy_of, exact_by_depth
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import RUN, WEIGHTS, read_metrics, read_run
from diffscope.models.folders import checkpoints
from diffscope.prompts.encoded import Chars
from diffscope.scope import Scope, load
from diffscope.storage.atomic import write_json
from diffscope.storage.checksum import write_sums
from diffscope.tasks.files import EXAMPLES
from diffscope.tasks.prompt import Prompt, TextPrompt
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.sampling import draw
from diffscope.tasks.training_sentence import last_template
from studies.laptop import text as text_cohort

PREFIX = "mini-"
ARMS = ("diff", "standard", "double-width")
MOST = 14_000_000  # bytes of weights, so that the wheel stays below 15 MB
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
SCORED = dict(count=500, needles=4, seed=20_000)
TEXT_SEED = 20_000  # of the texts of its training that a model of text is scored on
# (tokens for the bundled tokenizer, needles, depth of the queried one)
KINDS = ((96, 2, 0.5), (128, 4, 0.0), (128, 4, 0.5), (256, 4, 0.25), (256, 4, 1.0), (256, 6, 0.5))
TEXT_EXAMPLES = (128, 256)  # tokens
DRAWS = 5000  # texts of which one makes an example
PAIR = "One of a matched pair: the other arm has the same width, depth, data, order of data, steps and schedule."
SEVERAL = (
    "One of {count} matched arms, of the same width, depth, data and order of data, their parameters equal within 1 %; the "
    "learning rate, {rate:g} here, is the best of those tried for each."
)
CURVE = "| {step} | {length} | {answer_loss:.3f} | {text_loss:.3f} | {retrieval:.0%} |"
TEXT_CURVE = "| {step} | {length} | {text_loss:.3f} |"
CARD = """---
license: apache-2.0
library_name: transformers
---
# {name}

{kind} of {parameters:,} parameters ({layers} layers, {heads} heads), trained by diffscope {task}.
{matched} It exists to be looked
into: small enough for a laptop, {purpose}

- **Command**: `{command}`, with the code of revision {revision}
- **Data**: documentation strings of the Python 3.11.7 standard library (SHA-256 of the training text
  `{fingerprint}`), 8 % of modules held out by a hash of their path{needle}.
- **Trained length**: {length} tokens. Torch {torch}, {threads} thread(s), float32, {minutes:.0f} minutes.
- {result}
- **Checkpoints** along training{steps}.

{columns}
{curve}

All logged points are in `card.json` under `curves`.
"""
#: what differs between cards of models that look up answers and of models of plain text
ANSWERS_CARD = {
    "task": "to look up numbers in real text",
    "purpose": "and it really retrieves. It knows little English and is of no other use.",
    "needle": ';\n  needle sentences "{sentence}" drawn from seed {seed}',
    "result": (
        "**Exact answers** at {length} tokens, {needles} needles, one question, {prompts} unseen prompts over held-out text:\n"
        "  **{retrieval:.1%}** (95 % interval {low:.1%} to {high:.1%}); by depth of the needle: {depths}."
    ),
    "columns": "| step | prompt length | answer loss | text loss | exact answers ({evaluated} prompts) |\n|---|---|---|---|---|",
}
TEXT_CARD = {
    "task": "as a plain language model",
    "purpose": (
        "with maps of text and of no task. It knows nothing but the tone of documentation, and was not\n"
        "taught to look up what retrieval prompts ask."
    ),
    "needle": "",
    "result": (
        "**Loss on held-out text**: {loss:.3f} nats a token, a perplexity of **{perplexity:.1f}** (all of it,\n"
        "  {windows} windows of {scored_length} tokens); on text that it was trained on {trained_loss:.3f}."
    ),
    "columns": "| step | text length | text loss (one batch of training) |\n|---|---|---|",
}


def publish(
    run: Path,
    recipe: Recipe,
    arms: Sequence[str] = (),
    seed: int | None = None,
    keep: Sequence[str] = (),
    target: Path = BUNDLED,
    examples: Path | None = None,
) -> list[dict]:
    """Put arms of a cohort, with one seed, among the bundled models, and draw the example prompts with their tokenizer.

    Parameters
    ----------
    run : Path
        The folder that ``diffscope train`` trained into.
    recipe : Recipe
        The recipe of that training.
    arms : sequence of str, optional
        By default DIFF and the two standard ones, or all of a cohort without these; of plain text DIFF alone.
    seed : int, optional
        By default the first of the recipe.
    keep : sequence of str, optional
        Checkpoints, ``ARM@STEP``; by default all of the differential arms but their last step, and none of plain text.
    target, examples : Path
        Where the models and the examples go, in place of those of the same names; by default the package's examples of
        retrieval, or of text.

    Returns
    -------
    list of dict
        The summaries of the cards.

    Raises
    ------
    DiffscopeError
        A run is missing or never formed, it has no such checkpoint, the wheel would be too large, or a model of text makes
        no example. Nothing was replaced then.
    """
    usual = ARMS[:1] if recipe.of_text else ARMS
    arms = arms or (usual if set(usual) <= set(recipe.arms) else tuple(recipe.arms))
    seed = recipe.seeds[0] if seed is None else seed
    sources = {arm: run / arm / f"seed-{seed}" for arm in arms}
    for arm, source in sources.items():
        check_run(arm, source, recipe)
    steps = chosen_steps(sources, recipe, keep)
    with tempfile.TemporaryDirectory() as staged:
        names = {arm: name_of(arm, recipe) for arm in arms}
        for arm, source in sources.items():
            copy_weights(source, Path(staged) / names[arm], steps[arm])
        check_size(Path(staged), target)
        compared = len(recipe.arms) if recipe.of_text else len(arms)
        summaries = [write_card(Path(staged) / names[arm], sources[arm], recipe, arm, seed, compared, steps[arm]) for arm in arms]
        prompts = examples_of(load(Path(staged) / names[arms[0]]), recipe)
        for name in names.values():
            shutil.rmtree(target / name, ignore_errors=True)
            shutil.copytree(Path(staged) / name, target / name)
    write_prompts(prompts, examples or EXAMPLES["text" if recipe.of_text else "retrieval"])
    return summaries


def examples_of(scope: Scope, recipe: Recipe) -> list[TextPrompt]:
    """Draw the example prompts of a cohort with the tokenizer of one of its models."""
    if recipe.of_text:
        return texts(scope)
    return questions(Retrieval(scope.tokenizer, held_out=True, template=_template(recipe)))


def name_of(arm: str, recipe: Recipe) -> str:
    """Return the name of an arm among the bundled models."""
    if recipe.of_text:
        return f"{PREFIX}text" if arm == ARMS[0] else f"{PREFIX}text-{arm}"
    return arm if arm.startswith(PREFIX) else PREFIX + arm


def check_run(arm: str, source: Path, recipe: Recipe) -> None:
    """Raise DiffscopeError unless a run is finished, with its last stage."""
    if not (source / WEIGHTS).is_file():
        raise DiffscopeError(f"{source} holds no finished run of {arm!r}; train it, or choose others with --arm and --seed")
    if read_metrics(source)[-1].get("stage", len(recipe.stages)) < len(recipe.stages) - 1:
        raise DiffscopeError(f"{source} never formed the lookup circuit; choose another seed with --seed")


def chosen_steps(sources: Mapping[str, Path], recipe: Recipe, keep: Collection[str]) -> dict[str, list[int]]:
    """Return the steps of each arm whose checkpoints are published.

    Raises
    ------
    DiffscopeError
        A named checkpoint does not exist.
    """
    known = {f"{arm}@{step}": (arm, step) for arm, source in sources.items() for step in sorted(checkpoints(source))}
    last = {arm: read_metrics(source)[-1]["step"] for arm, source in sources.items()}
    differential = [arm for arm in sources if recipe.arms[arm].get("attention") in ("v1", "v2")]
    usual = [name for name, (arm, step) in known.items() if arm in differential and step < last[arm]]
    if absent := [name for name in keep if name not in known]:
        raise DiffscopeError(f"there is no checkpoint {absent[0]}; there are {', '.join(known)}")
    chosen = [known[name] for name in keep or ([] if recipe.of_text else usual)]
    return {arm: sorted(step for of, step in chosen if of == arm) for arm in sources}


def copy_weights(source: Path, folder: Path, steps: Sequence[int]) -> None:
    """Copy a model in half precision, with its tokenizer and its checkpoints of some steps."""
    folder.mkdir()
    for name in FILES:
        shutil.copyfile(source / name, folder / name)
    tensors = {name: tensor.half() for name, tensor in load_file(source / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    for step in steps:
        shutil.copytree(checkpoints(source)[step], folder / "checkpoints" / f"step-{step:06d}")


def check_size(staged: Path, target: Path) -> None:
    """Raise DiffscopeError if staged models, with those that they do not replace, are too large for the wheel."""
    replaced = {folder.name for folder in staged.iterdir()}
    kept = [folder for folder in target.iterdir() if folder.name not in replaced] if target.is_dir() else []
    size = sum(file.stat().st_size for folder in (staged, *kept) for file in folder.rglob("*.safetensors"))
    if size > MOST:
        raise DiffscopeError(
            f"these models come to {size / 1e6:.1f} MB, and the wheel takes {MOST / 1e6:.1f} MB of weights; keep fewer "
            "checkpoints with --checkpoint ARM@STEP, or remove other models from diffscope/models/bundled"
        )


def write_card(folder: Path, source: Path, recipe: Recipe, arm: str, seed: int, count: int, steps: Sequence[int]) -> dict:
    """Score a model as it is stored, write its card and digests, and return the summary of the card."""
    scope = load(folder)
    scored_on = {"length": text_cohort.LENGTH, "seed": TEXT_SEED} if recipe.of_text else {**SCORED, "length": recipe.length}
    scores = text_scores(scope) if recipe.of_text else answer_scores(scope, recipe)
    curves = read_metrics(source)
    ran = read_run(source / RUN)
    config = scope.model.config
    summary = {
        "name": folder.name,
        "attention": config.attention,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "parameters": scope.model.num_parameters(),
        "positions": recipe.length,
        "scores": scores,
        "checkpoints": list(steps),
        "matched": PAIR if count == 2 else SEVERAL.format(count=count, rate=json.loads(ran["recipe"])["learning_rate"]),
        **({} if recipe.of_text else {"evaluated": recipe.evaluation.prompts, "sentence": sentence(_template(recipe))}),
    }
    facts = {
        "command": f"diffscope train {recipe.name} --arm {arm} --seed {seed} --out runs/{recipe.name}",
        "seed": seed,
        "minutes": curves[-1]["seconds"] / 60,
        **{name: fact for name, fact in ran.items() if name != "recipe"},  # the card has it by itself
    }
    card = {"summary": summary, "facts": facts, "scored_on": scored_on, "recipe": recipe.as_dict(), "curves": curves}
    write_json(folder / CARD_FILE, card, indent=1)
    (folder / "README.md").write_text(card_text(summary, facts, curves), encoding="utf-8")
    write_sums(folder, (*FILES, WEIGHTS, CARD_FILE))
    return summary


def answer_scores(scope: Scope, recipe: Recipe) -> dict:
    """Score the answers of a model to unseen prompts in the sentence of its training."""
    task = Retrieval(scope.tokenizer, held_out=True, template=_template(recipe))
    return exact_by_depth(accuracy_of(scope, draw(task, length=recipe.length, **SCORED)).right)


def text_scores(scope: Scope) -> dict:
    """Return loss (nats a token) and perplexity on all held-out text, and loss on text of the training."""
    ids, hits = text_cohort.windows(scope)  # (window, token)
    held_out = text_cohort.losses(scope, ids, hits)
    trained_on = text_cohort.of_training(scope, TEXT_SEED)
    return {
        "loss": held_out["loss"],
        "perplexity": held_out["perplexity"],
        "trained_loss": text_cohort.losses(scope, *trained_on)["loss"],
        "windows": len(ids),
    }


def card_text(summary: dict, facts: dict, curves: list[dict]) -> str:
    """Return the card for people, as Markdown."""
    kinds = {"v1": "A DIFF Transformer (V1)", "v2": "A DIFF Transformer (V2)", "standard": "A standard Transformer"}
    scores = summary["scores"]
    is_text = "perplexity" in scores
    steps = f": none are kept; `{' '.join(facts['command'].split()[:3])}` trains it again with all of them"
    if summary["checkpoints"]:
        steps = f", half precision, opened as `{summary['name']}@STEP`: {summary['checkpoints']}"
    known = {
        **{"matched": PAIR, "evaluated": 60, "sentence": sentence(TEMPLATE)},
        **summary,
        **facts,
        **scores,
        "kind": kinds.get(summary["attention"], f"A Transformer with {summary['attention']} attention,"),
        "steps": steps,
        "length": summary["positions"],
        "needles": SCORED["needles"],
        "scored_length": text_cohort.LENGTH,
    }
    if is_text:
        rows = [TEXT_CURVE.format(**row) for row in curves if row["step"] % 100 == 0]
    else:
        known["low"], known["high"] = scores["interval"]
        known["depths"] = ", ".join(f"{float(depth):.0%} {share:.1%}" for depth, share in scores["by_depth"].items())
        rows = [CURVE.format(**row) for row in curves if "retrieval" in row]
    parts = {name: part.format(**known) for name, part in (TEXT_CARD if is_text else ANSWERS_CARD).items()}
    return CARD.format(**{**known, **parts, "curve": "\n".join(rows)})


def as_text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, name: str) -> TextPrompt:
    """Return a generated prompt as text, with a character range for each run of neighbouring tokens of a span."""
    pieces = [tokenizer.decode([token]) for token in prompt.ids[1:]]  # without <bos>
    ends = np.concatenate([[0, 0], np.cumsum([len(piece) for piece in pieces])])  # of each token, <bos> included
    ranges = {}
    for span in ("answer", "needles", "query"):
        at = np.array(prompt.spans[span], dtype=int)
        if not len(at):
            continue
        runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
        ranges[span] = [Chars(int(ends[run[0]]), int(ends[run[-1] + 1])) for run in runs]
    answer, *distractors = (tokenizer.decode(ids).strip() for ids in (prompt.answer, *prompt.distractors))
    return TextPrompt(name, "".join(pieces), ranges, answer, tuple(distractors))


def questions(task: Retrieval, seed: int = 7) -> list[TextPrompt]:
    """Draw the example prompts of retrieval."""
    rng = np.random.default_rng(seed)
    drawn = []
    for length, needles, depth in KINDS:
        prompt = task.prompt(length, needles, rng, depth)
        name = f"{length} tokens, {needles} needles, answer at {round(100 * depth)} %"
        drawn.append(as_text(task.tokenizer, prompt, name))
    return drawn


def texts(scope: Scope, seed: int = 7) -> list[TextPrompt]:
    """Draw the example prompts of text: of each length the first whose next word the model predicts from the text itself.

    Raises
    ------
    DiffscopeError
        The model predicts the next word of none of `DRAWS` texts.
    """
    recall = Recall(scope.tokenizer)
    rng = np.random.default_rng(seed)
    drawn = []
    for length in TEXT_EXAMPLES:
        prompts = (recall.prompt(length, rng) for _ in range(DRAWS))
        predicted = next((prompt for prompt in prompts if is_predicted(scope, prompt)), None)
        if predicted is None:
            raise DiffscopeError(f"the model predicts no next word of {DRAWS} texts of {length} tokens; publish another seed")
        drawn.append(as_text(scope.tokenizer, predicted, f"text of {length} tokens, whose next word follows from it"))
    return drawn


@torch.inference_mode()
def is_predicted(scope: Scope, prompt: Prompt) -> bool:
    """Whether a model predicts the next word because the word stands in the text.

    The word has to be the likeliest, twice as likely as the second. If any other word of the text takes all of its places, it
    must not be the likeliest. A text whose tokens change when it is tokenised again is refused.
    """
    (answer,) = prompt.answer
    words = {token for token in prompt.ids[1:] if _is_word(scope.tokenizer.decode([token]))}
    repeated = {prompt.ids[at] for at in prompt.spans["query"]}  # where the answer's own word stands, others would change it
    if answer not in words - repeated or scope.tokenize(scope.tokenizer.decode(prompt.ids[1:])) != prompt.ids:
        return False
    likely = scope.model(torch.tensor([prompt.ids])).logits[0, -1].softmax(-1).topk(2)
    if int(likely.indices[0]) != answer or likely.values[0] < 2 * likely.values[1]:
        return False
    others = [[other if token == answer else token for token in prompt.ids] for other in sorted(words - {answer})]
    return not (scope.model(torch.tensor(others)).logits[:, -1].argmax(-1) == answer).any()


def _is_word(text: str) -> bool:
    return text.startswith(" ") and text.strip().isalpha()


def write_prompts(drawn: Sequence[TextPrompt], file: Path) -> None:
    """Write prompts in the form that ``read_prompts`` reads."""
    fields = ("spans", "answer", "distractors")
    rows = [{"name": one.name, "prompt": one.text, **{name: getattr(one, name) for name in fields}} for one in drawn]
    write_json(file, rows, indent=1)


def _template(recipe: Recipe) -> str:
    """Return the needle sentence of the last stage of training."""
    return last_template(recipe.as_dict()) or TEMPLATE


def sentence(template: str) -> str:
    """Return a needle sentence for people."""
    return template.strip().format(city="CITY", number="N")


def main() -> None:
    """Publish what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder that diffscope train trained into")
    parser.add_argument("--recipe", help="name or .toml file of what it was trained by; by default the name of the folder")
    parser.add_argument("--arm", action="append", default=[], help="an arm to publish; repeatable")
    parser.add_argument("--seed", type=int, help="by default the first of the recipe")
    parser.add_argument("--checkpoint", action="append", default=[], metavar="ARM@STEP", help="one to keep; repeatable")
    options = parser.parse_args()
    try:
        recipe = Recipe.load(options.recipe or options.run.name)
        summaries = publish(options.run, recipe, options.arm, options.seed, options.checkpoint)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    for summary in summaries:
        scores = summary["scores"]
        words = f"perplexity {scores['perplexity']:.1f}" if "perplexity" in scores else f"{scores['retrieval']:.1%} exact answers"
        sys.stdout.write(f"{summary['name']}: {words}\n")


if __name__ == "__main__":
    main()
