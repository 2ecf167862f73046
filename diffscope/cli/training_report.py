"""What ``diffscope train`` says of the runs in a folder."""

from diffscope.cli.output import note, say, show_json, show_table, working
from diffscope.errors import DiffscopeError


def tell_failures(cohort, outcome):
    """Name the runs that failed, and return the cause of each by its name."""
    from diffscope.lab.training.runs import run_label

    failed = {run_label(run): outcome.failed[run.place] for run in cohort.planned() if run.place in outcome.failed}
    for label, cause in failed.items():
        note(f"failed: {label}: {cause}")
    return failed


def check_folder(out):
    """Refuse a folder of runs that there is not."""
    if not out.is_dir():
        raise DiffscopeError(f"there is no folder {out}; give the one into which runs were trained")


def collected(cohort):
    """Collect a folder's finished runs in its dataset."""
    from diffscope.lab.items import lock
    from diffscope.lab.training.cohort import CURVES, DATASET, collect
    from diffscope.lab.training.scores import MEASURED, OF_TASK
    from diffscope.storage.statistics import save_statistics

    with lock(cohort.out, "dataset"), working("putting runs together"):  # of two commands that end together
        dataset = collect(cohort)
        save_statistics(dataset, cohort.out / DATASET, dated=False)
        curves = [name for name in (*MEASURED, *OF_TASK) if name in dataset]
        save_statistics(dataset[curves], cohort.out / CURVES, dated=False)
    return dataset


def tell_outdated(cohort):
    """Name the runs whose evidence is missing or of another format than this."""
    from diffscope.evidence.run_file import outdated

    if names := outdated(cohort.out):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        note(f"evidence of {shown} is missing or of another format; take it with --recompute-evidence")


def tell_versions(cohort):
    """Say which versions the finished runs were made with, if these are not the ones that run here."""
    if versions := cohort.other_versions():
        note(f"Finished runs were made with other versions: {versions}. They are not trained again.")


def show_progress(cohort, dataset):
    """Show the chosen rates, which runs are done and when they formed; scores are read when all runs are there."""
    from diffscope.lab.training.cohort import summary

    table = cohort.tuning()
    if table is not None:
        show_tuning(table, cohort.rates(), cohort.recipe)
        tell_unformed(cohort)
    _show_formation(summary(dataset), cohort.recipe)
    note(f"{int(dataset['finished'].sum())} runs are finished; --report shows their scores")


def _show_formation(rows, recipe):
    show_table(
        ["arm", "parameters", "learning rate", "formed at step"],
        [[row["arm"], row["parameters"], f"{row['rate']:g}", _formed(row, recipe)] for row in rows],
    )


def tell_unformed(cohort):
    """Name the arms that formed at no rate with every tuning seed, if that is how rates are chosen."""
    from diffscope.lab.training.runs import unformed
    from diffscope.lab.training.stages import FORMED_IN_ALL

    if cohort.recipe.tuning.rule != FORMED_IN_ALL:
        return
    for arm, count in unformed(cohort.tuning(), cohort.rates()).items():
        of = len(cohort.recipe.tuning.seeds)
        note(f"{arm} forms at no rate of [tuning] with all {of} seeds; its rate is the one at which most do, {count} of {of}")


def show_tuning(table, rates, recipe):
    """Show the grid of learning rates: the mean loss over steps by arm, rate and seed, and when each formed."""
    seeds = [int(seed) for seed in table["tuning_seed"].values]
    shown = "loss" if recipe.of_text else "loss, formed at"
    headers = ["arm", "rate", *(f"seed {seed}: {shown}" for seed in seeds), "chosen"]
    rows = []
    for arm in table["arm"].values:
        for rate in table["rate"].values:
            runs = table.sel(arm=arm, rate=rate)
            cells = [_tuned(runs.sel(tuning_seed=seed), recipe) for seed in seeds]
            rows.append([str(arm), f"{rate:g}", *cells, "yes" if rates.get(str(arm)) == rate else ""])
    say("learning rates: mean over steps of the loss that is lowered, in nats")
    show_table(headers, rows)


def _tuned(run, recipe):
    area, formed = (float(run[name]) for name in ("tuning_area", "tuning_formation"))
    if area != area:
        return "not yet"
    if recipe.of_text:
        return f"{area:.3f}"
    return f"{area:.3f}, {'never' if formed != formed else int(formed)}"


def _formed(row, recipe):
    if row["arm"] in recipe.continued:
        return f"as {recipe.continued[row['arm']].arm}, which it continues"
    if recipe.of_text:
        return ", ".join(["plain text", *(f"(seed {seed} missing)" for seed in row["missing"])])
    steps = ["never" if step is None else str(step) for seed, step in row["formation"].items()]
    return ", ".join([*steps, *(f"(seed {seed} missing)" for seed in row["missing"])])


def show_status(cohorts, processes, as_json):
    """Show which runs of cohorts are done, under way and left, by arm, and how long the rest takes so many processes."""
    from diffscope.lab.training.cohort import progress_by_arm, remaining_in_words

    arms = [(cohort.recipe.name, progress_by_arm(cohort)) for cohort in cohorts]
    if as_json:
        rows = [_status_of(row, name, processes) for name, of_cohort in arms for row in of_cohort]
        left, hours = (sum(row[key] for row in rows) for key in ("left", "hours_left"))
        show_json(
            {"recipes": [name for name, _ in arms], "processes": processes, "left": left, "hours_left": hours, "arms": rows}
        )
        return
    for name, rows in arms:
        _show_status(rows, processes)
        note(f"{name}: {remaining_in_words(rows, processes)}")


def _status_of(row, recipe, processes):
    """Return how far the runs of one arm are, ready for JSON."""
    from diffscope.lab.training.runs import run_label

    return {
        "recipe": recipe,
        "arm": row.arm,
        "tuning": row.tuning,
        "done": row.done,
        "left": row.left,
        "under_way": [
            {"run": run_label(each.run), "step": each.step, "steps": each.steps, "minutes_since": each.minutes}
            for each in row.under_way
        ],
        "seconds_a_step": row.step,
        "hours_left": row.seconds / processes / 3600,
    }


def _show_status(rows, processes):
    """Show how far the runs of each arm of a cohort are."""
    from diffscope.lab.training.runs import run_label

    show_table(
        ["arm", "runs", "done", "under way", "left", "s a step", "hours left"],
        [
            [
                row.arm,
                "choose its rate" if row.tuning else "",
                row.done,
                ", ".join(f"{run_label(each.run)}: step {each.step}" for each in row.under_way) or None,
                row.left,
                row.step,
                row.seconds / processes / 3600,
            ]
            for row in rows
        ],
    )


def show_report(cohort, as_json):
    """Show what the finished runs of a cohort, or of those arms and seeds that it names, learned, and which failed."""
    from diffscope.lab.training.cohort import DATASET, summary

    check_folder(cohort.out)
    outcome = cohort.outcome()
    failed = tell_failures(cohort, outcome)
    dataset = collected(cohort)
    dataset = dataset.sel(
        arm=[arm for arm in dataset["arm"].values if arm in (cohort.arms or [arm])],
        seed=[seed for seed in dataset["seed"].values if seed in (cohort.seeds or [seed])],
    )
    tell_versions(cohort)
    rows = summary(dataset)
    if as_json:
        show_json({"arms": rows, "failed": failed})
    else:
        _show_runs(dataset, rows, cohort)
    total, done = (sum("tuning" not in run.spec for run in runs) for runs in (cohort.planned(), outcome.done))
    note(f"{done} of {total} runs are finished; all that was measured is in {cohort.out / DATASET}")


def _show_runs(dataset, rows, cohort):
    recipe = cohort.recipe
    if "copied" in dataset:
        _show_copies(dataset, rows, cohort)
        return
    if "text" not in dataset:  # no run was scored
        _show_formation(rows, recipe)
        return
    of_text = ["text loss: repeated", "other"]
    if "exact_match" not in dataset:
        show_table(["arm", *of_text], [[row["arm"], row["text_hit"], row["text_other"]] for row in rows])
        return
    counts = [int(count) for count in dataset["distractors"].values]
    of_sentences = "near" in dataset.dims
    headers = ["arm", "rate", "formed at step", *(f"{count} distractors: exact, log-odds" for count in counts)]
    headers += ["near-duplicates", "says unknown: rightly", "wrongly"] if of_sentences else []
    table = []
    for row in rows:
        cells = [f"{row['exact_match_by_distractors'][n]:.1%}, {row['log_odds_by_distractors'][n]:.2f}" for n in counts]
        if of_sentences:
            cells += [f"{row[name]:.1%}" for name in ("near", "unknown_when_unanswerable", "unknown_when_answerable")]
        table.append([row["arm"], f"{row['rate']:g}", _formed(row, recipe), *cells, row["text_hit"], row["text_other"]])
    say("exact answers and their log-odds (nats), by number of distractors; mean over prompts, lengths, seeds that were scored")
    show_table([*headers, *of_text], [*table, _by_chance(dataset, counts)])


def _show_copies(dataset, rows, cohort):
    """Show how well the copies of Bigram-Backcopy are predicted by the end of each run, mean over seeds."""
    from diffscope.lab.training.cohort import COPIES, copies_at_the_end

    last = copies_at_the_end(cohort, dataset).mean("seed")
    say("tokens after a trigger: share that is right, and loss (nats); the loss on bigrams above the least;")
    say("mean over seeds that did not diverge")
    table = []
    for row in rows:
        of_arm = last.sel(arm=row["arm"])
        values = [float(of_arm[name]) for name in COPIES]
        table.append([row["arm"], f"{row['rate']:g}", _formed(row, cohort.recipe), *values])
    show_table(["arm", "rate", "formed at step", "copied", "loss", "bigrams"], table)


def _by_chance(dataset, counts):
    """Return what a model that copies any number would give."""
    by_count = [f"{1 / (count + 1):.1%}" for count in counts]
    if "near" in dataset.dims:
        near = [1 / (1 + near) for near in dataset["near"].values if near]
        by_count += [f"{sum(near) / len(near):.1%}", "", ""]
    return ["copying any number", "", "", *by_count, None, None]
