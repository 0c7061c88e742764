"""Sweeps: all combinations of the values in a command, each composed once."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, product
from math import prod
from pathlib import Path
from socket import gethostname

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedopt.config import CONF, Composed, check_choices, compose, key_of, parsed, quoted, refuse_hydra, search_path
from fedopt.config.explain import explain
from fedopt.console import counted, ctrl_c_kept, end_with, ending_at_once, note, tell
from fedopt.console.say import say
from fedopt.errors import UserError, first_line
from fedopt.files import refuse_links
from fedopt.jobs.job import Job, Outcome, optimised
from fedopt.jobs.local import Launcher, Local, run_all
from fedopt.machine import cores
from fedopt.results import RunFolder
from fedopt.running import FIRST, held, named, run_name, run_place, sweep_place

MOST_RUNS = 10_000  # of a sweep: all are composed before the first begins
# How the keys begin that set up a sweep by one of Hydra's launchers or sweepers
LAUNCHED = ("hydra/launcher", "hydra.launcher.", "hydra/sweeper", "hydra.sweeper.")


@dataclass(frozen=True)
class Sweep:
    """The combinations of a sweep, composed and checked.

    Args:
        words: The overrides of the command.
        folders: The user's config folders.
        composed: overrides of a combination -> its config. If Hydra's sweeper chooses combinations, only some are here.
        folder: The folder of all runs.
        swept: The keys with several values.
        naming: The keys that appear in the name of a run's folder, besides the seed. None: all overridden keys.
        places: overrides of a combination -> the folder of its run.
    """

    words: tuple[str, ...]
    folders: tuple[str, ...]
    composed: Mapping[tuple[str, ...], Composed]
    folder: Path
    swept: frozenset[str]
    naming: frozenset[str] | None
    places: dict[tuple[str, ...], Path]

    def job(self, words: tuple[str, ...]) -> Job:
        """Return the job of a combination, given its overrides.

        A combination that is not in `composed`, chosen by Hydra's sweeper, is composed now. Raises UserError as `compose`
        does.
        """
        composed = self.composed.get(words) or compose(words, self.folders)
        place = self.places.get(words) or self.place(composed, {})
        return Job(place, composed, place.name)

    def place(self, composed: Composed, taken: dict[str, Composed]) -> Path:
        """Return the folder for a run. composed: its config. taken: folder -> config of runs that begin together, as in
        `run_place`.
        """
        if self.naming is None and (renamed := held(self.folder / run_name(composed, self.swept), composed)):
            return renamed  # the folder of a sweep without output_dir, under another name now
        return run_place(self.folder / run_name(composed, self.naming), composed, taken)


def sweep(words: Sequence[str], folders: Sequence[str], launcher: Launcher) -> int:
    """Do all combinations of a command, write sweep.csv and print a summary.

    Return the exit code: 1 if a run failed or was refused, 130 after Ctrl-C, else 0.

    Args:
        words: The overrides of the command.
        folders: The user's config folders.
        launcher: Does the runs.

    Raises:
        UserError: The command has a mistake, or the launcher cannot be used.
    """
    words = [re.sub(r"^\+*hydra\.sweep\.dir=", "output_dir=", word) for word in words]
    refuse_hydra(words, LAUNCHED)
    if (by_hydra := any(word.startswith("hydra") for word in words)) and not isinstance(launcher, Local):
        raise UserError(
            "--launcher cannot be combined with hydra/launcher or hydra/sweeper, which start the runs "
            "themselves; remove one of them"
        )
    planned = plan(words, folders, launcher)
    from fedopt.analysis import report

    bad: dict[Job, Outcome] = {}
    refused = False
    tell(*_head(planned))
    try:
        with ctrl_c_kept():
            if by_hydra:
                refused = _by_hydra(planned)
            else:
                bad = run_all([planned.job(combination) for combination in planned.composed], launcher)
    except KeyboardInterrupt:
        report(planned.folder)
        say(launcher.stopped)
        return 130
    return max(report(planned.folder, _refused(bad)), refused, bool(bad))


def sweep_all(commands: Sequence[Sequence[str]], folders: Sequence[str], at_once: int) -> list[Path]:
    """Do the sweeps of several commands under one progress bar. Return the folders of the runs, in order, each once.

    A run that fails after it has begun raises nothing; its folder records the failure.

    Args:
        commands: The overrides of each command.
        folders: The user's config folders.
        at_once: The number of runs at the same time.

    Raises:
        UserError: A command has a mistake, raised before anything runs; or runs were refused or could not begin, raised at
            the end.
        KeyboardInterrupt: Ctrl-C was pressed. It is raised when all runs have written a checkpoint.
    """
    for words in commands:
        refuse_hydra(words)
    taken: dict[str, Composed] = {}
    launcher = Local(at_once)
    sweeps = [plan(words, folders, launcher, taken) for words in commands]
    from fedopt.analysis import report

    tell(*(line for planned in sweeps for line in _head(planned)))
    jobs = {job.folder: job for planned in sweeps for job in map(planned.job, planned.composed)}
    bad = run_all([*jobs.values()], launcher)
    for folder in dict.fromkeys(planned.folder for planned in sweeps):
        report(folder, _refused(bad))
    failed = {
        job for job in bad if RunFolder(job.folder).status() == "failed" and (job.folder / "config.yaml").is_file()
    }
    lost = [f"{job.folder}: {why}" for job, (_, why) in bad.items() if job not in failed]
    if lost:
        raise UserError(f"{len(lost)} of {len(jobs)} runs could not be done; the first is {lost[0]}")
    return [*jobs]


def _refused(bad: Mapping[Job, Outcome]) -> dict[Path, str]:
    """Return run folder -> reason, for refused runs: their folders hold runs with other values. bad: as `run_all` returns it."""
    return {job.folder: why for job, (status, why) in bad.items() if status == "refused"}


def _head(planned: Sweep) -> list[str]:
    """Return the lines printed before a sweep: methods and problems, tuned values, data, and the folder."""
    shared = frozenset[str].intersection(*map(frozenset, planned.composed))
    keys = sorted({key_of(word) for words in planned.composed for word in words if word not in shared})
    methods = dict[str, dict[str, None]]()
    tuned, data = dict[str, None](), dict[str, None]()
    for one in planned.composed.values():
        methods.setdefault(one.chosen["problem"], {})[one.chosen["algo"]] = None
        tuned[str(one.tuned)] = None
        clients = getattr(one.parts["partitioner"], "clients", None)
        crowd = [] if clients is None else [one.settings.participation.described(clients)]
        data[", ".join([*crowd, *[one.chosen["dataset"]] * ("dataset" in one.parts)])] = None
    what = "; ".join(f"{', '.join(some)} on {problem}" for problem, some in methods.items())
    over = f" over {', '.join(keys)}" if keys else ""
    head = f"{what}: {counted(len(planned.composed), 'run')}{over}"
    return [*filter(None, [head, "; ".join(tuned), "; ".join(data)]), f"in {planned.folder}"]


def plan(
    words: Sequence[str], folders: Sequence[str], launcher: Launcher, taken: dict[str, Composed] | None = None
) -> Sweep:
    """Compose and check every combination, without loading data, so that mistakes show before the first run.

    Args:
        words: The overrides of the command.
        folders: The user's config folders.
        launcher: Will do the runs. It prepares when all are composed.
        taken: folder -> config of runs of other sweeps that begin together, as in `run_place`. This sweep's runs are added in
            place.

    Raises:
        UserError: A combination is wrong; the message says which.
    """
    given = {word: _alternatives(override) for word, override in zip(words, parsed(words), strict=True)}
    given = {word: values for word, values in given.items() if not word.startswith("hydra")}
    swept = [word for values in given.values() if len(values) > 1 for word in values]
    by_sweeper = any(word.startswith("hydra/sweeper=") for word in words)
    check_choices((word for values in given.values() for word in values), folders)
    composed: dict[tuple[str, ...], Composed] = {}
    for combination in _combinations(list(given.values()), by_sweeper):
        with _in_combination(combination, swept):
            composed[combination] = compose(combination, folders)
    launcher.prepare()
    with ending_at_once():
        from fedopt.analysis import differences  # with pandas
        from fedopt.running import check_parts
    for combination, one in composed.items():
        with _in_combination(combination, swept):
            check_parts(one)
    places = {one.settings.output_dir for one in composed.values()}
    if len(places) > 1:
        raise UserError(
            f"output_dir={','.join(map(str, places))}: a sweep needs a single one, in which each run gets a folder"
        )
    keys = {key_of(word) for word in swept}
    if warning := differences(list(composed.values()), keys):
        note(warning)
    naming = None if by_sweeper else frozenset(keys)
    if place := places.pop():
        folder, naming = Path(place), None
    else:
        first = next(iter(composed.values())).chosen
        algo, problem = (f"{group}s" if group in keys else first[group] for group in ("algo", "problem"))
        shared = [word for word in given if key_of(word) not in keys]
        name = named((word for word in (*shared, *keys) if key_of(word) not in FIRST), [f"{algo}_{problem}"])
        folder = sweep_place(Path("outputs/multirun") / name, shared, keys)
    refuse_links(folder / name for name in ("multirun.yaml", "sweep.csv"))
    planned = Sweep(tuple(words), tuple(folders), composed, folder, frozenset(keys), naming, {})
    taken = {} if taken is None else taken
    planned.places.update({combination: planned.place(one, taken) for combination, one in composed.items()})
    return planned


def _by_hydra(planned: Sweep) -> bool:
    """Do the runs with the Hydra launcher or sweeper that the command names. Return whether a run was refused.

    Raises UserError if Hydra cannot use them.
    """
    where = quoted(str(planned.folder).replace("${", "\\${"))
    words = [*search_path(planned.folders), *_added(planned.words), f"hydra.sweep.dir={where}"]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name="fedopt"):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            batches: Sequence[Sequence[JobReturn]] = (
                hydra.multirun("config", partial(_hydra_job, planned, (gethostname(), os.getpid())), words) or ()
            )
    except MissingConfigException as error:
        raise UserError(explain(error, planned.words, {})) from None
    except (ValueError, TypeError, ImportError, HydraException, OmegaConfBaseException) as error:
        raise UserError(f"hydra/launcher or hydra/sweeper cannot be used: {first_line(error)}") from error
    return any(job.return_value is None for batch in batches for job in batch)


def _hydra_job(planned: Sweep, command: tuple[str, int], config: DictConfig) -> float | None:
    """Do one of Hydra's jobs, and return the value to optimise; None for a refused run.

    A mistake is printed and does not raise, so that the other jobs continue.
    planned: the sweep. command: host and process id of the sweep's command; a worker exits when that process does. config:
        Hydra's.
    """
    parent, here = os.getppid(), (gethostname(), os.getpid())

    def alive() -> bool:  # the sweep may have ended before this worker's first job
        return os.getppid() == parent and (here[0] != command[0] or _runs(command[1]))

    if here != command:
        end_with(alive)
    given = HydraConfig.get()
    words = tuple(bare if (bare := word.removeprefix("++")) in planned.words else word for word in given.overrides.task)
    try:
        job = planned.job(words)
    except UserError as error:
        say(f"{' '.join(words)}: {error}")
        return None
    parallel = OmegaConf.select(given.launcher, "n_jobs", default=1)
    status, text = job.do(cores() if parallel == -1 else parallel)
    if here != command and not alive():
        os._exit(130)  # nobody waits for this worker, which would wait for another job
    tell(f"{status:<9} {job.title}  {text}")
    if status == "interrupted":
        raise KeyboardInterrupt
    return None if status == "refused" else optimised(RunFolder(job.folder), job.composed.settings.eval.metric)


def _runs(process: int) -> bool:
    with suppress(OSError):  # it is gone, or its number is another user's process now
        os.kill(process, 0)
        return True
    return False


def _added(words: Sequence[str]) -> list[str]:
    """Return the overrides, with ++ in front of those that set a key of a swept config group.

    Hydra first composes the config without the swept groups, where such keys would be unknown. `plan` has checked that every
    combination has them.
    """
    overrides = parsed(words)
    swept = {override.key_or_group for override in overrides if override.is_sweep_override()}
    plain = (
        not word.startswith(("+", "~")) and override.key_or_group.partition(".")[0] in swept - {override.key_or_group}
        for word, override in zip(words, overrides, strict=True)
    )
    return [f"++{word}" if add else word for word, add in zip(words, plain, strict=True)]


@contextmanager
def _in_combination(combination: Sequence[str], swept: Sequence[str]) -> Iterator[None]:
    """Prefix a UserError raised in the `with` block with the combination in which it occurred.

    combination: its overrides. swept: all overrides of the sweep that vary.
    """
    try:
        yield
    except UserError as error:
        which = " ".join(word for word in combination if word in swept and word not in str(error))
        raise UserError(f"{which}: {error}" if which else str(error)) from error


def _combinations(given: list[list[str]], by_sweeper: bool) -> Iterable[tuple[str, ...]]:
    """Return all combinations of a sweep, each a tuple of overrides.

    If Hydra's sweeper chooses, return only enough that each alternative occurs at least once.

    given: for each override, its alternatives. by_sweeper: whether Hydra's sweeper chooses. Raises UserError if there are no
        combinations or too many.
    """
    longest = max(map(len, given), default=1)
    runs = longest * all(given) if by_sweeper else prod(map(len, given))
    if runs not in range(1, MOST_RUNS + 1):
        raise UserError(
            f"this sweep has {f'more than {MOST_RUNS:,} runs; give fewer' if runs else 'no run; give'} values"
        )
    each = zip(*(islice(cycle(words), longest) for words in given), strict=True)
    return each if by_sweeper and given else product(*given)


def _alternatives(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [override.input_line or ""]
    if override.is_interval_sweep():
        interval = override.value()
        assert isinstance(interval, IntervalSweep)
        return [f"{override.key_or_group}={end}" for end in (interval.start, interval.end)]
    if isinstance(override.value(), Glob):
        raise UserError(f"{override.input_line}: glob is not supported; list the values, separated by commas")
    values = islice(override.sweep_string_iterator(), MOST_RUNS + 1)
    return [f"{override.key_or_group}={value}" for value in values]
