"""Make searches from a command's arguments, and run all their trials."""

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
from fedopt.config import NODES, Composed, compose, file_of, flat, key_of, parsed, refuse_mistyped
from fedopt.console import Bar, counted, heard, note
from fedopt.errors import Unfinished, UserError, among, joined
from fedopt.files import read_json, refuse_links
from fedopt.jobs import Job, Launcher, Local, Outcome, run_all
from fedopt.metrics import selected, validates
from fedopt.results import OVER, RunFolder

POINTS = 40  # evaluations per run, unless the command sets eval


def planned_searches(
    overrides: Sequence[str], folders: Sequence[str], metric: str | None, budget: str | None, how: How, folder: Path
) -> list[Search]:
    """Return the search of each algorithm that the overrides name, checked as far as possible without a run.

    Args:
        overrides: `algo=NAME,NAME`, one problem, settings and ranges.
        folders: The user's config folders.
        metric: The metric to optimise. None: the problem's first metric on validation data, else its first.
        budget: KEY=VALUE for the config node `budget`. None: as the overrides or the config set it.
        how: The options of all searches.
        folder: The folder of all searches.

    Raises:
        UserError: An override, the metric or the budget is wrong, or the folder holds another search.
    """
    ranges = dict(pair for text in overrides if key_of(text) not in ("algo", "problem") and (pair := read_range(text)))
    fixed = [text for text in overrides if key_of(text) not in {*ranges, "algo"}]
    named = [text.partition("=")[2] for text in overrides if key_of(text) == "algo"]
    if not named or not any(key_of(text) == "problem" and "," not in text for text in fixed):
        parsed(text for text in overrides if "(" not in text)  # names what is not an override
        refuse_mistyped(overrides)
        raise UserError("a search needs algo=NAME,... and one problem=NAME")
    if taken := [text for text in overrides if key_of(text) in ("seed", "output_dir", "resume", "from")]:
        raise UserError(f"{taken[0]}: leave this out; a search has its own folders, and seeds from {FIRST_SEED} on")
    if budget:
        if not re.fullmatch(r"(budget\.)?\w+=\S+", budget):
            raise UserError(f"--budget {budget}: must be KEY=VALUE, such as --budget comm_rounds=300")
        fixed.append(f"budget.{budget.removeprefix('budget.')}")
    fixed += [] if any(key_of(text).startswith("eval.") for text in fixed) else [f"eval.points={POINTS}"]
    algos = [*dict.fromkeys(named[-1].split(","))]
    if len(algos) > 1 and not any(key_of(text).startswith("budget.") for text in fixed):
        raise UserError("--budget is missing; set one for all algorithms, such as --budget comm_rounds=300")
    composed = [compose([f"algo={algo}", *fixed], folders) for algo in algos]
    if unused := [key for key in ranges if not any(key in flat(one.nodes) for one in composed)]:
        compose([*composed[0].overrides, f"{unused[0]}=1"], folders)  # reports similar keys
    if odd := [key for key in ranges if "." not in key or key.partition(".")[0] not in NODES]:
        raise UserError(f"{odd[0]}: cannot be searched; give ranges to keys of {', '.join(NODES)}, such as algo.eta")
    if unlike := differences(composed, {"algo", *ranges}):
        note(unlike)
    searches = [_search(one, fixed, ranges, metric, how, folder) for one in composed]
    refuse_other_search(searches, folder)
    for search in searches:
        search.update()
    if line := selected(searches[0].metric.name):
        note(line)
    return searches


def _search(
    composed: Composed, fixed: Sequence[str], given: Mapping[str, Range], metric: str | None, how: How, folder: Path
) -> Search:
    """Return the search of one algorithm.

    Args:
        composed: The config of the algorithm with its defaults.
        fixed: The overrides of all runs.
        given: key -> range, from the command. Without a range for a key of the algorithm, the 'tuned as' comments decide.
        metric: The metric to optimise. None: the problem's first metric on validation data, else its first.
        how: The options of the search.
        folder: The folder of all searches.

    Raises:
        UserError: No key can be searched, or the metric is wrong.
    """
    from fedopt.running.assemble import assemble  # imports torch

    algo, values, taken = composed.chosen["algo"], flat(composed.nodes), {*map(key_of, fixed)}
    ranges = {key: of_key for key, of_key in given.items() if key in values}
    by_role = {} if ranges else default_ranges(composed)
    ranges = ranges or {key: of_key for key, of_key in by_role.items() if key not in taken}
    if not ranges:
        file = file_of("algo", algo, composed.folders)
        why = f"no comment in {file} says what a key is tuned as; write one, such as 'eta: 0.1 # step size; tuned as a step size'"
        if by_role:
            why = f"the command sets every key that is tuned, {', '.join(by_role)}; leave one out"
        raise UserError(f"{algo}: {why}, or give a range, such as 'algo.eta=log(0.001,1)'")
    metrics = assemble(composed).problem.metrics
    goals = [one for one in metrics if one.better != "neither"]
    goals.sort(key=lambda one: not validates(one.name))  # validation data first, if the problem has them
    chosen = next((one for one in metrics if one.name == metric), None) if metric else goals[0]
    if chosen is None:
        raise UserError(f"--metric {metric}: there is no such metric{among(str(metric), [one.name for one in goals])}")
    chosen.check_goal(f"--metric {chosen.name}")
    overrides = (*fixed, f"eval.metric={chosen.name}")
    return Search(algo, composed.chosen["problem"], overrides, composed.folders, ranges, chosen, how, folder / algo)


def search_all(searches: Sequence[Search], folder: Path, launcher: Launcher) -> None:
    """Run all missing trials of the searches. Repeat the call to resume a stopped search.

    Args:
        searches: The searches. Their `done` is extended in place.
        folder: The folder of all searches.
        launcher: Runs the jobs. On a cluster, every trial is a standalone run.

    Raises:
        UserError: The folder holds another search, is in use or is damaged; or an algorithm cannot run with its defaults.
        Unfinished: Some runs did not finish.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    refuse_links(folder.rglob("*"))
    lock, begun = RunFolder(folder), 0
    lock.open()
    with closing(lock), closing(Bar(stream=sys.stdout)) as bar:
        lock.write_json("search.json", refuse_other_search(searches, folder))
        _check(job for one in searches for t in one.done if t.standalone for job in one.runs(t.number, t.point))
        while jobs := [job for search in searches for job in search.jobs(not isinstance(launcher, Local))]:
            waiting = [job for job in jobs if not job.settled]
            _check(job for job in jobs if job not in waiting)
            begun += len(jobs)
            bar.expect(max(begun, sum(search.expected for search in searches)), begun - len(waiting))
            failed = run_all(waiting, launcher, bar)
            for search in searches:
                search.update()
            refuse_unfinished(failed)
            for job, (_, why) in failed.items():  # only the defaults must not be refused by the algorithm
                if not all(search.done for search in searches if job.folder.is_relative_to(search.folder)):
                    raise UserError(f"{job.folder}: {why}")
        for search in searches:
            bar.line(_together(search))


def _together(search: Search) -> str:
    """Return a line that says how many trials were computed together, and why the others were not.

    Args:
        search: The search, which has ended.
    """
    why = {number: row["alone"] for (number, _), row in search.ends.items() if row["alone"]}
    together = len({number for number, _ in search.ends} - {*why})
    alone = f"; {len(why)} ran alone: {joined(dict.fromkeys(why.values()), 3)}" if why else ""
    return f"{search.name}: {together} of {search.planned - 1} trials were computed together{alone}"


def refuse_unfinished(bad: Mapping[Job, Outcome]) -> None:
    """Raise Unfinished if runs did not finish. bad: job -> outcome of the jobs that failed, as `run_all` returns it."""
    if lost := [f"{job.folder}: {outcome.text}" for job, outcome in bad.items() if not job.settled]:
        many = f"{counted(len(lost), 'run')} did not finish"
        raise Unfinished(f"{many}; repeat the command to resume. The first: {lost[0]}")


def _check(jobs: Iterable[Job]) -> None:
    """Check that runs that have ended have the config and data of their jobs. Changed code is reported in a note.

    Raises:
        UserError: A run has another config or other data.
    """
    with heard() as notes:
        for job in jobs:
            if RunFolder(job.folder).status() in OVER:
                job.check()
    if notes:
        note(f"{notes[0]} ({len(notes)} runs of this search)" if len(notes) > 1 else notes[0])


def refuse_other_search(searches: Sequence[Search], folder: Path) -> dict[str, Any]:
    """Check that a folder holds no other search of these algorithms, and return the new content of search.json.

    The number of trials may differ, except for a grid.

    Raises:
        UserError: The folder has a search of the same algorithm with different overrides, ranges or options.
    """
    before = read_json(folder / "search.json", {}, others=dict[str, dict[str, int | str]])
    for search in searches:
        options = asdict(search.how)
        if search.how.sampler != "grid":  # a larger grid has other points
            del options["trials"]
        ranges = {key: str(values) for key, values in search.ranges.items()}
        overrides = dict(text.partition("=")[::2] for text in search.overrides)
        now = {"overrides": overrides, "ranges": ranges, "options": options}
        for part, values in now.items():
            then = before.get(search.algo, now).get(part, {})
            was, asked = sorted(then.items() - values.items()), sorted(values.items() - then.items())
            if was or asked:
                texts = (", ".join(f"{key}={value}" for key, value in one) or "none" for one in (was, asked))
                other = f"holds a search of {search.algo} with other {part} ({', not '.join(texts)})"
                raise UserError(f"{folder}: {other}; choose another folder with --out DIR")
        before[search.algo] = now
    return before
