"""Turn arms of a trained cohort, with one seed, into the bundled models with their cards.

``python -m tools.publish runs/laptop --seed 0`` publishes DIFF and standard attention with maps as wide as DIFF's, as
``mini-diff`` and ``mini-standard``; of a cohort without these arms all. Of the second study's language models it publishes DIFF,
as ``mini-text``, with ``--recipe studies/subtraction/text.toml --text CORPUS``; of a cohort of Bigram-Backcopy DIFF and standard
attention, as ``mini-sinks`` and ``mini-sinks-standard``. Weights are stored in half precision, and scored as they are stored. The
example prompts are drawn anew with the models' tokenizer, unless ``--name`` says how models are called that come beside those
there.

DIFF's checkpoints along training come with models that look up answers, or those that ``--checkpoint ARM@STEP`` names; the model
itself is the last step. Weights that would make the wheel larger than 15 MB are refused before anything is replaced.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file, save_file

from diffscope.cards import BUNDLED, CARD_FILE
from diffscope.errors import DiffscopeError
from diffscope.lab.training.initialisation import with_text
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import WEIGHTS, check_recipe, read_metrics, read_run
from diffscope.models.folders import RUN, checkpoint_folder, checkpoints, tokenizer_folder
from diffscope.numbers import counted
from diffscope.scope import load
from diffscope.storage.atomic import write_json
from diffscope.storage.checksum import write_sums
from diffscope.tasks.prompt import TextPrompt
from diffscope.tasks.retrieval import TEMPLATE
from tools.kinds_of_models import KINDS, kind_of, sentence, template_of

PREFIX = "mini-"
MOST = 14_000_000  # bytes of weights, so that the wheel stays below 15 MB
OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
FILES = ("config.json", "generation_config.json", *OF_TOKENIZER)
PAIR = "One of a matched pair: the other arm has the same width, depth, data, order of data, steps and schedule."
SEVERAL = (
    "One of {count} matched arms, of the same width, depth, data and order of data, their parameters equal within 1 %; the "
    "learning rate, {rate:g} here, is {chosen}."
)
CHOSEN = {True: "the best of those tried for each", False: "that of all arms"}
ATTENTION = {
    "v1": "A DIFF Transformer (V1)",
    "v2": "A DIFF Transformer (V2)",
    "plus": (
        "A DIFF Transformer (V1) that begins by adding its second map, D = A1 + λ·A2, with a λ that is learned and may "
        "change its sign,"
    ),
    "standard": "A standard Transformer",
}
CARD = """---
license: apache-2.0
library_name: transformers
---
# {name}

{kind} of {parameters:,} parameters ({shape}), trained by diffscope {task}.
{matched} It exists to be looked
into: small enough for a laptop, {purpose}

- **Command**: `{command}`, with the code of revision {revision}
- **Data**: {data}.
- **Trained length**: {length} tokens. Torch {torch}, {threads} thread(s), float32, {time}.
- {result}
- **Checkpoints** along training{steps}.

{columns}
{curve}

All logged points are in `card.json` under `curves`.
"""


def publish(
    run: Path,
    recipe: Recipe,
    arms: Sequence[str] = (),
    seed: int | None = None,
    keep: Sequence[str] = (),
    name: str | None = None,
    source: str | None = None,
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
        By default those that are usual for the task, or all of a cohort without these.
    seed : int, optional
        By default the first of the recipe.
    keep : sequence of str, optional
        Checkpoints, ``ARM@STEP``; by default all of the differential arms of models that look up answers but their last step,
        and none of other models.
    name : str, optional
        Of DIFF, after ``mini-``, and what names of the other arms begin with; by default that of the task. With a name of
        their own models come beside those that are there, whose examples stay.
    source : str, optional
        What ``diffscope train`` finds the recipe by; by default its name.
    target, examples : Path
        Where the models and the examples go, in place of those of the same names; by default the package's.

    Returns
    -------
    list of dict
        The summaries of the cards.

    Raises
    ------
    DiffscopeError
        A run is missing, of another recipe or never formed, it has no such checkpoint, the wheel would be too large, or a
        model of text makes no example. Nothing was replaced then.
    """
    kind = KINDS[kind_of(recipe)]
    arms = arms or (kind.arms if set(kind.arms) <= set(recipe.arms) else tuple(recipe.arms))
    seed = recipe.seeds[0] if seed is None else seed
    sources = {arm: run / arm / f"seed-{seed}" for arm in arms}
    for arm, folder in sources.items():
        check_run(arm, folder, recipe)
    steps = chosen_steps(sources, recipe, keep, kind.checkpoints and name is None)
    names = {arm: PREFIX + name_of(arm, kind.stem if name is None else name) for arm in arms}
    with tempfile.TemporaryDirectory() as staged:
        for arm, folder in sources.items():
            copy_weights(folder, Path(staged) / names[arm], steps[arm])
        check_size(Path(staged), target)
        trained = Training(recipe, source or recipe.name, seed)
        summaries = [write_card(Path(staged) / names[arm], sources[arm], trained, arm, steps[arm]) for arm in arms]
        prompts = kind.draw(load(Path(staged) / names[arms[0]]), recipe) if name is None else []
        for called in names.values():
            shutil.rmtree(target / called, ignore_errors=True)
            shutil.copytree(Path(staged) / called, target / called)
    if prompts:
        write_prompts(prompts, examples or kind.examples)
    return summaries


def name_of(arm: str, stem: str) -> str:
    """Return the name of an arm among the bundled models, after ``mini-``: of DIFF the stem alone."""
    if not stem:
        return arm.removeprefix(PREFIX)
    return stem if arm == "diff" else f"{stem}-{arm}"


def check_run(arm: str, source: Path, recipe: Recipe) -> None:
    """Raise DiffscopeError unless a run of this recipe is finished, with its last stage."""
    if not (source / WEIGHTS).is_file():
        raise DiffscopeError(f"{source} holds no finished run of {arm!r}; train it, or choose others with --arm and --seed")
    if read_metrics(source)[-1].get("stage", len(recipe.stages)) < len(recipe.stages) - 1:
        raise DiffscopeError(f"{source} never formed the lookup circuit; choose another seed with --seed")
    check_recipe(source, recipe, arm)


def chosen_steps(sources: Mapping[str, Path], recipe: Recipe, keep: Collection[str], usual: bool) -> dict[str, list[int]]:
    """Return the steps of each arm whose checkpoints are published; where none are named and it is usual, of differential arms.

    Raises
    ------
    DiffscopeError
        A named checkpoint does not exist.
    """
    known = {f"{arm}@{step}": (arm, step) for arm, source in sources.items() for step in sorted(checkpoints(source))}
    last = {arm: read_metrics(source)[-1]["step"] for arm, source in sources.items()}
    differential = [arm for arm in sources if recipe.arms[arm].get("attention") in ("v1", "v2")]
    along = [name for name, (arm, step) in known.items() if usual and arm in differential and step < last[arm]]
    if absent := [name for name in keep if name not in known]:
        raise DiffscopeError(f"there is no checkpoint {absent[0]}; there are {', '.join(known)}")
    chosen = [known[name] for name in keep or along]
    return {arm: sorted(step for of, step in chosen if of == arm) for arm in sources}


def copy_weights(source: Path, folder: Path, steps: Sequence[int]) -> None:
    """Copy a model in half precision, with its tokenizer, its own or that of its cohort, and its checkpoints of some steps."""
    folder.mkdir()
    shutil.copyfile(source / "config.json", folder / "config.json")
    load(source).model.generation_config.save_pretrained(folder)
    of_tokenizer = tokenizer_folder(source)
    if of_tokenizer is None:
        raise DiffscopeError(f"{source} has no tokenizer, and no folder of a cohort around it has one; copy it with its cohort's")
    for name in OF_TOKENIZER:
        shutil.copyfile(of_tokenizer / name, folder / name)
    tensors = {name: tensor.half() for name, tensor in load_file(source / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    for step in steps:
        shutil.copytree(checkpoints(source)[step], checkpoint_folder(folder, step))


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


class Training(NamedTuple):
    """What arms of one publication have in common.

    Attributes
    ----------
    recipe : Recipe
    source : str
        What ``diffscope train`` finds it by.
    seed : int
    """

    recipe: Recipe
    source: str
    seed: int


def write_card(folder: Path, source: Path, trained: Training, arm: str, steps: Sequence[int]) -> dict:
    """Score a model as it is stored, write its card and digests, and return the summary of the card."""
    recipe = trained.recipe
    task = kind_of(recipe)
    scope = load(folder)
    scores, scored_on = KINDS[task].score(scope, recipe)
    curves = read_metrics(source)
    ran = read_run(source / RUN)
    config = scope.model.config
    matched = SEVERAL.format(
        count=len(recipe.arms), rate=json.loads(ran["recipe"])["learning_rate"], chosen=CHOSEN[recipe.tuning is not None]
    )
    of_prompts = {"evaluated": recipe.evaluation.prompts, "sentence": sentence(template_of(recipe))} if task != "copies" else {}
    planted = {"planted": recipe.stages[-1].planted, "most": recipe.stages[-1].needles[1]} if task == "text" else {}
    corpus = "" if recipe.corpus is None else " --text CORPUS"
    summary = {
        "name": folder.name,
        "task": task,
        "attention": config.attention,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "parameters": scope.model.num_parameters(),
        "positions": recipe.length,
        "scores": scores,
        "checkpoints": list(steps),
        "matched": PAIR if len(recipe.arms) == 2 else matched,
        **of_prompts,
        **planted,
    }
    facts = {
        "command": f"diffscope train {trained.source}{corpus} --arm {arm} --seed {trained.seed} --out runs/{recipe.name}",
        "seed": trained.seed,
        "minutes": curves[-1]["seconds"] / 60,
        **{name: fact for name, fact in ran.items() if name != "recipe"},  # the card has it by itself
    }
    card = {"summary": summary, "facts": facts, "scored_on": scored_on, "recipe": recipe.as_dict(), "curves": curves}
    write_json(folder / CARD_FILE, card, indent=1)
    (folder / "README.md").write_text(card_text(summary, facts, curves), encoding="utf-8")
    write_sums(folder, (*FILES, WEIGHTS, CARD_FILE))
    return summary


def card_text(summary: dict, facts: dict, curves: list[dict]) -> str:
    """Return the card for people, as Markdown."""
    kind = KINDS[summary["task"]]
    steps = f": none are kept; `{facts['command'].partition(' --arm')[0]}` trains it again with all of them"
    if summary["checkpoints"]:
        steps = f", half precision, opened as `{summary['name']}@STEP`: {summary['checkpoints']}"
    known = {
        **{"matched": PAIR, "evaluated": 60, "sentence": sentence(TEMPLATE)},
        **summary,
        **facts,
        **summary["scores"],
        **kind.facts(summary["scores"]),
        "kind": ATTENTION.get(summary["attention"], f"A Transformer with {summary['attention']} attention,"),
        "shape": f"{counted(summary['layers'], 'layer')}, {counted(summary['heads'], 'head')}",
        "time": counted(round(facts["minutes"]), "minute"),
        "steps": steps,
        "length": summary["positions"],
    }
    parts = {part: getattr(kind, part).format(**known) for part in ("task", "purpose", "data", "result", "columns")}
    rows = [kind.curve.format(**row) for row in curves if kind.is_logged(row)]
    return CARD.format(**{**known, **parts, "curve": "\n".join(rows)})


def write_prompts(drawn: Sequence[TextPrompt], file: Path) -> None:
    """Write prompts in the form that ``read_prompts`` reads."""
    fields = ("spans", "answer", "distractors")
    rows = [{"name": one.name, "prompt": one.text, **{name: getattr(one, name) for name in fields}} for one in drawn]
    write_json(file, rows, indent=1)


def main() -> None:
    """Publish what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder that diffscope train trained into")
    parser.add_argument("--recipe", help="name or .toml file of what it was trained by; by default the name of the folder")
    parser.add_argument("--arm", action="append", default=[], help="an arm to publish; repeatable")
    parser.add_argument("--seed", type=int, help="by default the first of the recipe")
    parser.add_argument("--name", help="of DIFF, after mini-, and the beginning of the others'; by default that of the task")
    parser.add_argument("--text", type=Path, help="the folder of the corpus that it was trained on")
    parser.add_argument("--checkpoint", action="append", default=[], metavar="ARM@STEP", help="one to keep; repeatable")
    options = parser.parse_args()
    try:
        source = options.recipe or options.run.name
        chosen = (options.arm, options.seed, options.checkpoint, options.name, source)
        summaries = publish(options.run, with_text(Recipe.load(source), options.text), *chosen)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    for summary in summaries:
        name, words = KINDS[summary["task"]].headline
        sys.stdout.write(f"{summary['name']}: {words.format(summary['scores'][name])}\n")


if __name__ == "__main__":
    main()
