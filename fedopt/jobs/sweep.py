"""Sweeps: run all combinations of the values in a command."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import NamedTuple

from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from fedopt.config import Composed, check_choices, compose, experimental, key_of, outputs, parsed, refuse_hydra
from fedopt.console import counted, ctrl_c_kept, ending_at_once, note, tell
from fedopt.console.say import say
from fedopt.errors import UserError
from fedopt.files import refuse_links
from fedopt.jobs.job import Job, Outcome
from fedopt.jobs.local import Launcher, run_all
from fedopt.results import RunFolder
from fedopt.running import FIRST, named, run_name, run_place, sweep_place

MOST_RUNS = 10_000  # the largest number of runs of a sweep; all configs are composed before the first run starts


class Sweep(NamedTuple):
    """The combinations of a sweep, composed and checked.

    Attributes:
        folder: The folder that contains the folders of all runs.
        swept: The keys with several values.
        jobs: One job for each combination.
    """

    folder: Path
    swept: list[str]
    jobs: list[Job]


def sweep(overrides: Sequence[str], folders: Sequence[str], launcher: Launcher) -> int:
    """Run all combinations of a command, write sweep.csv and print a summary.

    Args:
        overrides: The overrides of the command.
        folders: The user's config folders.
        launcher: The launcher of the runs.

    Returns:
        The exit code: 1 if a run failed or was refused, 130 after Ctrl-C, otherwise 0.

    Raises:
        UserError: The command is invalid, or the launcher cannot be used.
    """
    planned = plan(overrides, folders)
    try:
        with ctrl_c_kept():
            return 1 if _do([planned], launcher) else 0
    except KeyboardInterrupt:
        say(launcher.stopped)
        return 130


def sweep_all(commands: Sequence[Sequence[str]], folders: Sequence[str], launcher: Launcher) -> list[Path]:
    """Run the sweeps of several commands with one progress bar.

    A run that fails after it has started does not raise an exception; its folder records the failure.

    Args:
        commands: The overrides of each command.
        folders: The user's config folders.
        launcher: Does the runs.

    Returns:
        The folders of the runs, in order and without repetitions.

    Raises:
        UserError: A command is invalid, which is raised before the first run; or runs were refused or could not start, which
            is raised at the end.
        KeyboardInterrupt: Ctrl-C was pressed. It is raised after all runs have written a checkpoint.
    """
    taken: dict[str, Composed] = {}
    sweeps = [plan(overrides, folders, taken) for overrides in commands]
    bad = _do(sweeps, launcher)
    runs = [*dict.fromkeys(job.folder for planned in sweeps for job in planned.jobs)]
    failed = {job for job in bad if bad[job].status == RunFolder(job.folder).status() == "failed"}
    if lost := [f"{job.folder}: {why}" for job, (_, why) in bad.items() if job not in failed]:
        raise UserError(f"{len(lost)} of {len(runs)} runs could not be started; the first one is {lost[0]}")
    return runs


def _do(sweeps: Sequence[Sweep], launcher: Launcher) -> dict[Job, Outcome]:
    """Execute the runs of sweeps with one progress bar, and write and print the table of each sweep.

    Args:
        sweeps: The sweeps.
        launcher: The launcher of the runs.

    Returns:
        The outcomes of the runs that neither finished nor diverged.

    Raises:
        UserError: The launcher cannot queue the jobs.
        KeyboardInterrupt: Ctrl-C was pressed. The tables are written first.
    """
    from fedopt.analysis import report

    def tables(bad: Mapping[Job, Outcome]) -> None:
        # The folder of a refused run contains a run with other values
        refused = {job.folder: why for job, (status, why) in bad.items() if status == "refused"}
        for folder in dict.fromkeys(planned.folder for planned in sweeps):
            report(folder, refused)

    tell(*(line for planned in sweeps for line in _head(planned)))
    jobs = {job.folder: job for planned in sweeps for job in planned.jobs}
    try:
        bad = run_all([*jobs.values()], launcher)
    except KeyboardInterrupt:
        tables({})
        raise
    tables(bad)
    return bad


def _head(planned: Sweep) -> list[str]:
    """Return the lines to print before a sweep: methods and problems, tuned values, clients and data, and the folder.

    Args:
        planned: The sweep.
    """
    methods = dict[str, dict[str, None]]()
    tuned, data = dict[str, None](), dict[str, None]()
    for one in (job.composed for job in planned.jobs):
        methods.setdefault(one.chosen["problem"], {})[one.chosen["algo"]] = None
        tuned[str(one.tuned)] = None
        clients = getattr(one.parts["partitioner"], "clients", None)
        participants = [] if clients is None else [one.settings.participation.described(clients)]
        data[", ".join([*participants, *[f"dataset={one.chosen['dataset']}"] * ("dataset" in one.parts)])] = None
    what = "; ".join(f"{', '.join(names)} on {problem}" for problem, names in methods.items())
    over = f" over {', '.join(planned.swept)}" if planned.swept else ""
    head = f"{what}: {counted(len(planned.jobs), 'run')}{over}"
    warnings = filter(None, map(experimental, dict.fromkeys(job.composed.chosen["algo"] for job in planned.jobs)))
    return [*warnings, *filter(None, [head, "; ".join(tuned), "; ".join(data)]), f"in {planned.folder}"]


def plan(overrides: Sequence[str], folders: Sequence[str], taken: dict[str, Composed] | None = None) -> Sweep:
    """Compose and check every combination without loading data, so that errors are found before the first run.

    Args:
        overrides: The overrides of the command.
        folders: The user's config folders.
        taken: Folder -> config of the runs that other sweeps of the same command will write. The runs of this sweep are
            added, so that no two runs get the same folder.

    Returns:
        The sweep.

    Raises:
        UserError: A combination is invalid. The message says which.
    """
    refuse_hydra(overrides)
    alternatives = {text: _alternatives(item) for text, item in zip(overrides, parsed(overrides), strict=True)}
    swept = [override for values in alternatives.values() if len(values) > 1 for override in values]
    check_choices((override for values in alternatives.values() for override in values), folders)
    configs: list[Composed] = []
    for combination in dict.fromkeys(_combinations([*alternatives.values()])):
        with _in_combination(combination, swept):
            configs.append(compose(combination, folders))
    with ending_at_once():
        from fedopt.analysis import differences  # imports pandas
        from fedopt.running import check_parts
    for one in configs:
        with _in_combination(one.overrides, swept):
            check_parts(one, {*map(key_of, swept)})
    places = {one.settings.output_dir for one in configs}
    if len(places) > 1:
        raise UserError(f"output_dir={','.join(map(str, places))}: a sweep needs one output_dir for all its runs")
    keys = {key_of(override) for override in swept}
    if warning := differences(configs, keys):
        note(warning)
    naming: frozenset[str] | None = frozenset(keys)
    if place := places.pop():
        folder, naming = Path(place), None
    else:
        first = configs[0].chosen
        algo, problem = (f"{group}s" if group in keys else first[group] for group in ("algo", "problem"))
        shared = [override for override in alternatives if key_of(override) not in keys]
        name = named((text for text in (*shared, *keys) if key_of(text) not in FIRST), [f"{algo}_{problem}"])
        folder = sweep_place(outputs() / "multirun" / name, shared, keys)
    refuse_links([folder / "sweep.csv"])
    taken = {} if taken is None else taken
    runs = [(run_place(folder / run_name(one, naming), one, taken), one) for one in configs]
    return Sweep(folder, sorted(keys), [Job(place, one, place.name) for place, one in runs])


@contextmanager
def _in_combination(combination: Sequence[str], swept: Sequence[str]) -> Iterator[None]:
    """Add the combination in which a UserError occurs in the context to its message.

    Args:
        combination: The overrides of the combination.
        swept: The overrides of the sweep that vary.
    """
    try:
        yield
    except UserError as error:
        which = " ".join(override for override in combination if override in swept and override not in str(error))
        raise UserError(f"{which}: {error}" if which else str(error)) from error


def _combinations(alternatives: Sequence[list[str]]) -> Iterable[tuple[str, ...]]:
    """Return all combinations of a sweep, each as a tuple of overrides.

    Args:
        alternatives: The alternatives of each override.

    Raises:
        UserError: There are no combinations, or too many.
    """
    runs = prod(map(len, alternatives))
    if runs not in range(1, MOST_RUNS + 1):
        amount = f"more than {MOST_RUNS:,} runs; use fewer values" if runs else "no runs; add values"
        raise UserError(f"this sweep has {amount}")
    return product(*alternatives)


def _alternatives(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [override.input_line or ""]
    if isinstance(override.value(), Glob | IntervalSweep):
        raise UserError(f"{override.input_line}: glob and interval are not supported; list the values with commas")
    values = islice(override.sweep_string_iterator(), MOST_RUNS + 1)
    return [f"{override.key_or_group}={value}" for value in values]
