"""Sweeps: all combinations of a command's values."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, islice, product
from math import prod
from pathlib import Path

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedopt.config.compose import check_choices, chosen_of, composed_of, explain, resolve, search_path
from fedopt.config.files import CONF, NO_PRESET
from fedopt.config.sent import refuse_hydra
from fedopt.config.tuned import Asked, differences, tuned
from fedopt.config.words import parsed, quoted
from fedopt.console.interrupts import ctrl_c_kept, ending_at_once
from fedopt.console.say import say
from fedopt.errors import UserError, cores, first_line
from fedopt.results.files import refuse_links
from fedopt.results.folder import ENDED, RunFolder
from fedopt.running.place import key_of, name_in_sweep, named

MOST_RUNS = 10_000  # of a sweep: all are composed before the first begins


# How the keys begin that set up a user's sweep
LAUNCHED = ("hydra/launcher", "hydra.launcher.", "hydra/sweeper", "hydra.sweeper.")


def sweep(overrides: list[str], folders: list[str]) -> int:
    """All combinations, by Hydra; returns 1 when a run failed or was refused, 130 after Ctrl-C, when what came out is said too."""
    overrides = [re.sub(r"^\+*hydra\.sweep\.dir=", "output_dir=", word) for word in overrides]
    refuse_hydra(overrides, LAUNCHED)
    folder, naming = _prepare_sweep(overrides, folders)
    refuse_links(folder / name for name in ("multirun.yaml", "sweep.csv"))
    from fedopt.comparing.sweep_table import report

    batches: Sequence[Sequence[JobReturn]] = ()
    try:
        with ctrl_c_kept(), initialize_config_dir(str(CONF), version_base="1.3", job_name="fedopt"):
            jobs = GlobalHydra.instance().hydra
            assert jobs is not None
            where = quoted(str(folder).replace("${", "\\${"))
            words = [*search_path(folders), *_added(overrides), f"hydra.sweep.dir={where}"]
            words = [word for word in words if word != NO_PRESET]  # `_job` sees to it: not all algorithms may have some
            job = partial(_job, naming, overrides)
            batches = jobs.multirun("config", job, words) or ()  # Optuna's sweeper returns nothing
    except (ValueError, TypeError, ImportError) as error:
        if not any(word.startswith("hydra") for word in overrides):
            raise
        raise UserError(f"hydra/launcher or hydra/sweeper: {first_line(error)}") from error
    except KeyboardInterrupt:
        report(folder)
        say("stopped; the same command goes on from here")
        return 130
    refused = any(job.return_value is None for batch in batches for job in batch)
    return max(report(folder), refused)


def _added(texts: Sequence[str]) -> list[str]:
    """As Hydra composes a config before the sweep, without the groups that are swept, keys of their options would be unknown to
    it: it is told to add them. `_prepare_sweep` has seen that each job has them."""
    read = parsed(texts)
    swept = {word.key_or_group for word in read if word.is_sweep_override()}
    plain = (
        not text.startswith(("+", "~")) and word.key_or_group.partition(".")[0] in swept - {word.key_or_group}
        for text, word in zip(texts, read, strict=True)
    )
    return [f"++{text}" if of else text for text, of in zip(texts, plain, strict=True)]


def _job(naming: Container[str] | None, given: Sequence[str], config: DictConfig) -> float | None:
    """One job of a sweep, which never raises so that the others go on. Returns what a sweeper optimises: `optimised`, or None.

    naming: the keys of the overrides that name its folder, None for all; given: the sweep's overrides.
    """
    job = HydraConfig.get()
    overrides = [bare if (bare := word.removeprefix("++")) in given else word for word in job.overrides.task]
    sources = [source.path for source in job.runtime.config_sources if source.schema == "file"]
    own = [path for path in sources if Path(path) != CONF]
    if NO_PRESET in given:
        overrides = [NO_PRESET, *overrides]
    chosen = chosen_of(job.runtime.choices, own)
    with suppress(UserError, HydraException, OmegaConfBaseException):  # `resolve` says what is wrong
        config, chosen = composed_of(overrides, own)  # as `_prepare_sweep` has it
    asked = Asked(overrides, chosen, own)
    words = [word for word in overrides if naming is None or key_of(word) in naming]
    run = asked.chosen["algo"], asked.chosen["problem"], words, OmegaConf.select(config, "seed")
    folder = RunFolder(named(Path(job.sweep.dir), lambda of: name_in_sweep(*run, of)))
    parallel = OmegaConf.select(job.launcher, "n_jobs", default=1)
    jobs = cores() if parallel == -1 else parallel
    from fedopt.jobs.job import job_of_many, optimised

    there = folder.status() in ENDED
    status = job_of_many(lambda: resolve(config), folder, asked, jobs)
    print(f"{status:<12} {folder.path}{', was there already' * there}", flush=True)
    if status == "failed":
        say(f"{folder.path}: {folder.summary().get('error')}")
    if status == "interrupted":
        raise KeyboardInterrupt
    return None if status == "refused" else optimised(folder, OmegaConf.select(config, "eval.metric"))


def _prepare_sweep(texts: list[str], folders: list[str]) -> tuple[Path, set[str] | None]:
    """Check every combination, names first and then values, as far as they tell before data are read, so that no mistake ends a
    sweep half-way.

    Returns the sweep's folder, and the keys whose values name those of its runs: None, all, in a folder of the user's own, and
    where another sweeper chooses the runs.
    """
    given = {text: _alternatives(word) for text, word in zip(texts, parsed(texts), strict=True)}
    given = {text: words for text, words in given.items() if not text.startswith("hydra")}
    swept = [word for words in given.values() if len(words) > 1 for word in words]
    found, configs = [], []
    other = any(text.startswith("hydra/sweeper=") for text in texts)
    combinations = list(_combinations(list(given.values()), other))
    check_choices((word for words in given.values() for word in words), folders)
    for combination in combinations:
        with _named(combination, swept, folders):
            config, chosen = composed_of(combination, folders)
            configs.append(resolve(config))
            by_hand = {} if tuned(chosen["preset"], combination, folders) else {"preset": "none"}
            found.append(({key: configs[-1][key] for key in ("output_dir", "budget", "eval")}, chosen | by_hand))
    with ending_at_once():
        from fedopt.running.assemble import parts
    for combination, resolved in zip(combinations, configs, strict=True):
        with _named(combination, swept, folders):
            try:
                parts(resolved)
            except UserError:
                raise
            except Exception:  # of somebody's own code: its run says the line
                continue
    folders_given = {config["output_dir"] for config, _ in found}
    if len(folders_given) > 1:
        raise UserError(
            f"output_dir={','.join(map(str, folders_given))}: a sweep has one, with a folder for each run in it"
        )
    keys = {key_of(word) for word in swept}
    if warning := differences(found, keys):
        say(warning)
    if given_folder := next(iter(folders_given)):
        return Path(given_folder), None
    algo, problem = (f"{group}s" if group in keys else found[0][1][group] for group in ("algo", "problem"))
    shared = [text for text in given if key_of(text) not in keys]
    folder = named(Path("outputs") / "multirun", lambda of: name_in_sweep(algo, problem, [*shared, *keys], None, of))
    return folder, None if other else keys


@contextmanager
def _named(combination: Sequence[str], swept: Container[str], folders: Iterable[str]) -> Iterator[None]:
    """A mistake says in which of a sweep's combinations it is."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        said = explain(error, [*combination, *(f"--config-dir={folder}" for folder in folders)])
        wrong, _, _ = said.partition("; fedopt --help")
        which = " ".join(word for word in combination if word in swept and word not in wrong)
        raise UserError(f"{which}: {said}" if which else said) from None


def _combinations(given: list[list[str]], chosen: bool) -> Iterable[Sequence[str]]:
    """All of a sweep; where another sweeper than Hydra's own chooses some of them, so many that each word is in one."""
    longest = max(map(len, given), default=1)
    runs = longest * all(given) if chosen else prod(map(len, given))
    if runs not in range(1, MOST_RUNS + 1):
        raise UserError(f"this sweep has {'no run' if not runs else f'more than {MOST_RUNS:,} runs'}")
    each = zip(*(islice(cycle(words), longest) for words in given), strict=True)
    return each if chosen and given else product(*given)


def _alternatives(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [override.input_line or ""]
    if override.is_interval_sweep():
        interval = override.value()
        assert isinstance(interval, IntervalSweep)
        return [f"{override.key_or_group}={end}" for end in (interval.start, interval.end)]
    values = islice(override.sweep_string_iterator(), MOST_RUNS + 1)
    return [f"{override.key_or_group}={value}" for value in values]
