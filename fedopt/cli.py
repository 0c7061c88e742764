"""The `fedopt` command: Hydra composes the config, `loop.execute` runs it.

Nothing here imports torch before a run starts, so that help and mistakes are answered at once.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import cycle, islice, product
from math import prod
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import fedopt
from fedopt.command import Parser, answer, explain, say
from fedopt.config import (
    CONF,
    NO_PRESET,
    Asked,
    check_choices,
    chosen_of,
    composed_of,
    differences,
    last_of_each,
    of_folder,
    parsed,
    quoted,
    refuse_hydra,
    resolve,
    search_path,
    tuned,
)
from fedopt.errors import UserError, first_line
from fedopt.interrupts import ctrl_c_kept, ending_at_once
from fedopt.results.folder import (
    ENDED,
    RunFolder,
    configured,
    key_of,
    name_in_sweep,
    named,
    numbers_of,
    place,
    refuse_links,
)
from fedopt.settings import INTERFACES, Budget, build, cores

MOST_RUNS = 10_000  # of a sweep: all are composed before the first begins
EXIT = {"finished": 0, "diverged": 3, "interrupted": 130}


def main() -> None:
    """Entry point of `fedopt` and `python -m fedopt`."""
    arguments = sys.argv[1:]
    answer(lambda: _dispatch(arguments), arguments)


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["new"]:
        from fedopt.new import new

        new(arguments[1:])
        return 0
    parser = Parser(prog="fedopt", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--config-dir", "-cd", dest="folders", action="append", default=[])
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--schema", choices=["config", "experiment", *INTERFACES])
    for flags in (("--help", "-h"), ("--version",), ("--multirun", "-m"), ("--resolve",), ("-sc",)):
        parser.add_argument(*flags, action="store_true")
    given = parser.parse_intermixed_args(arguments)
    given.overrides = last_of_each(map(of_folder, given.overrides))
    if given.resolve and not given.cfg:
        raise UserError("--resolve goes with --cfg job")
    if given.schema:
        from fedopt.schema import schema

        print(json.dumps(schema(given.schema, given.folders), indent=2))
    elif given.sc:
        _complete(given.overrides)
    elif given.help or not arguments:
        from fedopt.help import show

        show(given.overrides, given.folders)
    elif given.version:
        print(f"fedopt {fedopt.__version__}")
    elif given.multirun and not given.cfg:
        return _sweep(given.overrides, given.folders)
    else:
        refuse_hydra(given.overrides)
        config, chosen = configured(given.overrides, given.folders)
        if not given.cfg:
            return _single(resolve(config), Asked(given.overrides, chosen, given.folders))
        print(OmegaConf.to_yaml(config, resolve=given.resolve).rstrip())
    return 0


def _complete(words: list[str]) -> None:
    """`-sc install=bash`: a script of Hydra's, which has the shell ask `fedopt -sc query=bash` for what COMP_LINE may become."""
    if len(words) != 1 or not re.fullmatch("(install|uninstall|query)=(bash|zsh|fish)", words[0]):
        raise UserError("-sc: goes with install, uninstall or query =bash, zsh or fish, such as install=bash")
    if words[0].startswith("query"):
        from fedopt.help import completions

        print(("\n" if words[0].endswith("fish") else " ").join(completions(os.environ.get("COMP_LINE", ""))))
        return
    with initialize_config_dir(str(CONF), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.shell_completion(None, words)


def _single(resolved: dict[str, Any], asked: Asked) -> int:
    with ending_at_once():
        from fedopt import loop

    status, folder = loop.execute(resolved, lambda: place(resolved, asked), asked)
    if loop.ranks.rank() == 0:
        print(_last_line(status, folder))
    return EXIT[status]


def _last_line(status: str, folder: RunFolder) -> str:
    summary = folder.summary()
    values = "  ".join(f"{name} {value:.5g}" for name, value in numbers_of(summary.get("final")).items())
    line = f"{status} after {summary.get('round')} rounds{_limit(folder, summary)} ({summary.get('seconds')} s)"
    line += f": {values}" if values else ""
    line += f"\nresults: {folder.path}"
    if status == "interrupted":
        line += f"\nto go on: {_modules()}fedopt resume=true {_as_word(folder.path)}"
    if status == "diverged":
        line += f"\nto go on from the last good state: from='{folder.path}', another output_dir and smaller steps"
    return line


def _limit(folder: RunFolder, summary: Mapping[str, Any]) -> str:
    """Which limit ended the run, where it has several."""
    budget = asdict(build(Budget, folder.config()["budget"], "budget"))
    limits = {key: limit for key, limit in budget.items() if limit is not None}
    spent = {"rounds": summary.get("round")} | {key: summary.get(key) for key in ("comm_rounds", "bytes", "seconds")}
    reached = [f"budget.{key}={limit}" for key, limit in limits.items() if (spent[key] or 0) >= limit]
    return f", by {' and '.join(reached)}" if summary.get("status") == "finished" and len(limits) > 1 else ""


def _as_word(folder: Path) -> str:
    """The override of the shell's that means this folder, which is there, with quotes where they are needed."""
    plain = re.fullmatch(r"[\w./,=+-]+", str(folder), re.ASCII)
    return f"output_dir={folder}" if plain else shlex.quote(f"output_dir={quoted(str(folder))}")


def _modules() -> str:
    """Where the modules of one's own were found."""
    path = os.environ.get("PYTHONPATH")
    return f"PYTHONPATH={shlex.quote(path)} " if path else ""


# Sweeps

# How the keys begin that set up a user's sweep
LAUNCHED = ("hydra/launcher", "hydra.launcher.", "hydra/sweeper", "hydra.sweeper.")


def _sweep(overrides: list[str], folders: list[str]) -> int:
    """All combinations, by Hydra; returns 1 when a run failed or was refused, 130 after Ctrl-C, when what came out is said too."""
    overrides = [re.sub(r"^\+*hydra\.sweep\.dir=", "output_dir=", word) for word in overrides]
    refuse_hydra(overrides, LAUNCHED)
    folder, naming = _prepare_sweep(overrides, folders)
    refuse_links(folder / name for name in ("multirun.yaml", "sweep.csv"))
    from fedopt.reproduce.sweep import report

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
    from fedopt.reproduce.sweep import job_of_many, optimised

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
        from fedopt.experiment import parts
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
