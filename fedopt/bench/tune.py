"""Make searches from a command's arguments, and do all their trials with one launcher."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedopt.analysis import differences
from fedopt.bench.space import Range, default_ranges, read_range
from fedopt.bench.trials import FIRST_SEED, How, Search
from fedopt.config import NODES, compose, file_of, flat, key_of, parsed, refuse_mistyped
from fedopt.console import Bar, counted, heard, note
from fedopt.errors import Unfinished, UserError, among
from fedopt.files import read_json, refuse_links
from fedopt.jobs import Job, Launcher, Outcome, run_all
from fedopt.metrics import LIMITS, selected, validates
from fedopt.results import OVER, RunFolder

POINTS = 40  # evaluations of a run, unless the command says when


def planned_searches(
    words: Sequence[str], folders: Sequence[str], metric: str | None, budget: str | None, how: How, folder: Path
) -> list[Search]:
    """Return the search of each algorithm that the overrides name, checked as far as possible without a run.

    Args:
        words: The overrides: `algo=NAME,NAME`, one problem, settings and ranges.
        folders: The user's config folders.
        metric: The metric to optimise. None: the problem's first metric on validation data, else its first.
        budget: KEY=VALUE for the config node `budget`. None: as the overrides or the config set it.
        how: The options of all searches.
        folder: The folder of all trials.

    Raises:
        UserError: An override, the metric or the budget is wrong, or the folder holds another search.
    """
    ranges = dict(pair for word in words if key_of(word) not in ("algo", "problem") and (pair := read_range(word)))
    fixed = [word for word in words if key_of(word) not in {*ranges, "algo"}]
    named = [word.partition("=")[2] for word in words if key_of(word) == "algo"]
    if not named or not any(key_of(word) == "problem" and "," not in word for word in fixed):
        parsed(word for word in words if "(" not in word)  # which names what is no override
        refuse_mistyped(words)
        raise UserError("a search needs algo=NAME,... and one problem=NAME")
    if taken := [word for word in words if key_of(word) in ("seed", "output_dir", "resume", "from")]:
        raise UserError(
            f"{taken[0]}: leave this out; a search has its own folders, and its own seeds from {FIRST_SEED} on, which "
            f"no report may use"
        )
    if budget and not re.fullmatch(r"(budget\.)?\w+=\S+", budget):
        raise UserError(f"--budget {budget}: must be KEY=VALUE, such as --budget comm_rounds=300")
    fixed += [f"budget.{budget.removeprefix('budget.')}"] if budget else []
    fixed += [] if any(key_of(word).startswith("eval.") for word in fixed) else [f"eval.points={POINTS}"]
    if len({*named[-1].split(",")}) > 1 and not any(key_of(word).startswith("budget.") for word in fixed):
        raise UserError("--budget is missing; give one for all methods, such as --budget comm_rounds=300")
    algos = dict.fromkeys(named[-1].split(","))
    composed = [compose([f"algo={algo}", *fixed], folders) for algo in algos]
    if unused := [key for key in ranges if not any(key in flat(one.nodes) for one in composed)]:
        compose([*composed[0].overrides, f"{unused[0]}=1"], folders)  # which says what is near to it
    if odd := [key for key in ranges if "." not in key or key.partition(".")[0] not in NODES]:
        raise UserError(f"{odd[0]}: cannot be searched; give ranges to keys of {', '.join(NODES)}, such as algo.eta")
    if unlike := differences(composed, {"algo", *ranges}):
        note(unlike)
    searches = [_search(algo, fixed, tuple(folders), ranges, metric, how, folder) for algo in algos]
    refuse_other_search(searches, folder)
    for search in searches:
        search.update()
    if line := selected(searches[0].metric.name):
        note(line)
    return searches


def _search(
    algo: str,
    fixed: Sequence[str],
    folders: tuple[str, ...],
    given: Mapping[str, Range],
    metric: str | None,
    how: How,
    folder: Path,
) -> Search:
    from fedopt.running.assemble import assemble  # which imports torch

    composed = compose([f"algo={algo}", *fixed], folders)
    set_by_words = {key_of(word) for word in fixed}
    values = {*flat(composed.nodes)}
    ranges = {key: values_of_key for key, values_of_key in given.items() if key in values}
    if not ranges:
        by_role = default_ranges(composed)
        ranges = {key: r for key, r in by_role.items() if key not in set_by_words}
        if not ranges:
            set_all = f"the command sets every key that is tuned, {', '.join(by_role)}; leave one out"
            none = f"the comment of none of its keys says what it is tuned as; write it in {file_of('algo', algo, folders)}"
            why = set_all if by_role else f"{none}, such as 'eta: 0.1 # step size; tuned as a step'"
            raise UserError(f"{algo}: {why}, or give a range, such as 'algo.eta=log(0.001,1)'")
    metrics = assemble(composed).problem.metrics
    goals = [one for one in metrics if one.better != "neither"]
    goals.sort(key=lambda one: not validates(one.name))  # what was held out, where the problem has it
    chosen = next((one for one in metrics if one.name == metric), None) if metric else goals[0]
    if chosen is None:
        names = [one.name for one in goals]
        raise UserError(f"--metric {metric}: there is no such metric{among(str(metric), names)}")
    chosen.check_goal(f"--metric {chosen.name}")
    x = LIMITS[next(iter(composed.settings.budget.limits))].name
    words = (*fixed, f"eval.metric={chosen.name}")
    return Search(algo, words, folders, ranges, chosen, x, how, folder / algo)


def search_all(searches: Sequence[Search], folder: Path, launcher: Launcher) -> None:
    """Do all missing trials of the searches. Repeat the call to resume a stopped search.

    Args:
        searches: The searches. Their `done` is extended in place.
        folder: The folder of all trials.
        launcher: Starts the runs, here or on a cluster.

    Raises:
        UserError: The folder holds another search, is in use or is damaged; or a method cannot run with its defaults.
        Unfinished: Some runs did not finish.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    refuse_links(folder.rglob("*"))
    lock = RunFolder(folder)
    lock.open()
    with closing(lock), closing(Bar(stream=sys.stdout)) as bar:
        lock.write_json("search.json", refuse_other_search(searches, folder))
        _check(job for search in searches for trial in search.done for job in search.jobs(trial.number, trial.point))
        planned = sum(search.planned * search.how.seeds for search in searches)
        while batches := [(search, batch) for search in searches if (batch := search.batch())]:
            jobs = [job for search, batch in batches for trial in batch for job in search.jobs(*trial)]
            waiting = [job for job in jobs if not RunFolder(job.folder).settled]
            _check(job for job in jobs if job not in waiting)
            kept = sum(len(search.done) * search.how.seeds for search in searches)
            bar.expect(planned, kept + len(jobs) - len(waiting))
            failed = run_all(waiting, launcher, bar)
            for search, _ in batches:
                search.update()
            refuse_unfinished(jobs, failed)
            # Others than the defaults may ask for what the method does not allow
            for job, (_, why) in failed.items():
                if not all(search.done for search in searches if job.folder.is_relative_to(search.folder)):
                    raise UserError(f"{job.folder}: {why}")


def refuse_unfinished(jobs: Sequence[Job], bad: Mapping[Job, Outcome]) -> None:
    """Raise Unfinished if some runs did not finish. bad: job -> outcome of the jobs that failed, as `run_all` returns it."""
    if lost := [job for job in jobs if not RunFolder(job.folder).settled]:
        why = bad[lost[0]].text if lost[0] in bad else "another command has removed it"
        first = f"{lost[0].folder}: {why}"
        raise Unfinished(
            f"{counted(len(lost), 'run')} did not end; repeat the command to resume them. The first: {first}"
        )


def _check(jobs: Iterable[Job]) -> None:
    """Check that runs that are over have the config and data that the jobs ask for. Raises UserError if not; changed code gives
    a note.
    """
    with heard() as notes:
        for job in jobs:
            if RunFolder(job.folder).status() in OVER:
                job.check()
    if notes:
        note(f"{notes[0]} ({len(notes)} runs of this search)" if len(notes) > 1 else notes[0])


def refuse_other_search(searches: Sequence[Search], folder: Path) -> dict[str, Any]:
    """Return the new content of search.json: the present content and these searches.

    Raises UserError if it has a search of the same algorithm with different overrides, ranges or options. A larger number of
    trials is allowed, except for a grid.
    """
    before = read_json(folder / "search.json", {}, others=dict[str, dict[str, int | str]])
    for search in searches:
        options = asdict(search.how)
        if search.how.sampler != "grid":  # a larger grid would have other points
            del options["trials"]
        ranges = {key: str(values) for key, values in search.ranges.items()}
        words = dict(word.partition("=")[::2] for word in search.words)
        now = {"overrides": words, "ranges": ranges, "options": options}
        for part, values in now.items():
            then = before.get(search.algo, now).get(part, {})
            was, asked = sorted(then.items() - values.items()), sorted(values.items() - then.items())
            if was or asked:
                texts = (", ".join(f"{key}={value}" for key, value in one) or "none" for one in (was, asked))
                other = f"with other {part} ({', not '.join(texts)})"
                raise UserError(
                    f"{folder}: holds a search of {search.algo} {other}; choose another folder with --out DIR"
                )
        if search.place(search.planned, FIRST_SEED).exists():
            raise UserError(f"{folder}: holds a search of {search.algo} with more trials; give as many by --trials")
        before[search.algo] = now
    return before
