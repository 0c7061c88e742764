"""The `fedopt` command: Hydra composes the config, `loop.execute` runs it.

Nothing here imports torch before a run starts, so that help and mistakes are answered at once.
"""

import sys
from collections.abc import Sequence
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

import fedopt
from fedopt.command import Parser, answer
from fedopt.config import (
    CONF,
    GROUPS,
    Asked,
    chosen_of,
    composed,
    composed_of,
    options,
    parsed,
    quoted,
    refuse_hydra,
    resolve,
    search_path,
)
from fedopt.errors import UserError, first_line
from fedopt.interrupts import ending_at_once
from fedopt.results.folder import RunFolder, numbers_of, place, refuse_links, slug
from fedopt.settings import cores

MOST_RUNS = 10_000  # of a sweep: all are composed before the first begins
EXIT = {"finished": 0, "diverged": 3, "interrupted": 130}


def main() -> None:
    """Entry point of `fedopt` and `python -m fedopt`."""
    arguments = sys.argv[1:]
    answer(lambda: _dispatch(arguments), arguments)


def _dispatch(arguments: list[str]) -> int:
    parser = Parser(prog="fedopt", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--config-dir", "-cd", dest="folders", action="append", default=[])
    parser.add_argument("--cfg", choices=["job"])
    for flags in (("--help", "-h"), ("--version",), ("--multirun", "-m"), ("--resolve",)):
        parser.add_argument(*flags, action="store_true")
    given = parser.parse_intermixed_args(arguments)
    if given.resolve and not given.cfg:
        raise UserError("--resolve goes with --cfg job")
    if given.help:
        print(help_text())
    elif given.version:
        print(f"fedopt {fedopt.__version__}")
    elif given.multirun and not given.cfg:
        return _sweep(given.overrides, given.folders)
    else:
        refuse_hydra(given.overrides)
        config, chosen = composed_of(given.overrides, given.folders)
        if not given.cfg:
            return _single(resolve(config), Asked(given.overrides, chosen))
        print(OmegaConf.to_yaml(config, resolve=given.resolve).rstrip())
    return 0


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
    line = f"{status} after {summary.get('round')} rounds ({summary.get('seconds')} s): {values}"
    line += f"\nresults: {folder.path}"
    if status == "interrupted":
        line += f"\nto go on: the same command with output_dir='{folder.path}' resume=true"
    if status == "diverged":
        line += f"\nto go on from the last good state: from='{folder.path}', another output_dir and smaller steps"
    return line


# Sweeps


def _sweep(overrides: list[str], folders: list[str]) -> int:
    """All combinations, by Hydra; returns 1 when a run failed or was refused. What came out is said also after Ctrl-C."""
    refuse_hydra(overrides, ("hydra/launcher", "hydra.launcher."))
    folder = _prepare_sweep(overrides, folders)
    refuse_links(folder / name for name in ("multirun.yaml", "sweep.csv"))
    from fedopt.reproduce.sweep import report

    batches: Sequence[Sequence[JobReturn]] = ()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name="fedopt"):
            jobs = GlobalHydra.instance().hydra
            assert jobs is not None
            where = quoted(str(folder).replace("${", "\\${"))
            batches = jobs.multirun("config", _job, [*search_path(folders), *overrides, f"hydra.sweep.dir={where}"])
    except (ValueError, TypeError, ImportError) as error:
        if not any(word.startswith("hydra") for word in overrides):
            raise
        raise UserError(f"hydra/launcher: {first_line(error)}") from error
    except KeyboardInterrupt:
        report(folder)
        raise
    refused = any(job.return_value == "refused" for batch in batches for job in batch)
    return max(report(folder), refused)


def _job(config: DictConfig) -> str:
    """One job of a sweep, which never raises so that the others go on. Returns its status."""
    job = HydraConfig.get()
    overrides, own = (
        list(job.overrides.task),
        [source.path for source in job.runtime.config_sources if source.schema == "file"],
    )
    folder = RunFolder(Path(job.sweep.dir) / slug(overrides))
    parallel = OmegaConf.select(job.launcher, "n_jobs", default=1)
    jobs = cores() if parallel == -1 else parallel
    from fedopt.reproduce.sweep import job_of_many

    status = job_of_many(lambda: resolve(config), folder, Asked(overrides, chosen_of(job.runtime.choices, own)), jobs)
    print(f"{status:<12} {folder.path}", flush=True)
    if status == "interrupted":
        raise KeyboardInterrupt
    return status


def _prepare_sweep(texts: list[str], folders: list[str]) -> Path:
    """Check every combination as far as its config tells, so that no mistake ends a sweep half-way, and name the sweep's folder."""
    given = [_alternatives(override) for override in parsed(texts)]
    if (runs := prod(map(len, given))) not in range(1, MOST_RUNS + 1):
        raise UserError(f"this sweep has {'no run' if not runs else f'more than {MOST_RUNS:,} runs'}")
    swept = [word for words in given if len(words) > 1 for word in words]
    chosen = set()
    for combination in product(*given):
        try:
            config = resolve(composed((word for word in combination if not word.startswith("hydra")), folders))
        except UserError as error:
            which = " ".join(word for word in combination if word in swept)
            raise UserError(str(error) if which in str(error) else f"{which}: {error}") from None
        chosen.add(config["output_dir"])
    if len(chosen) > 1:
        raise UserError(f"output_dir={','.join(map(str, chosen))}: a sweep has one, with a folder for each run in it")
    named = [text for text in texts if not text.startswith("hydra")]
    return Path(next(iter(chosen)) or Path("outputs") / "multirun" / slug(named))


def _alternatives(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [override.input_line or ""]
    values = islice(override.sweep_string_iterator(), MOST_RUNS + 1)
    return [f"{override.key_or_group}={value}" for value in values]


# Help


def help_text() -> str:
    """Usage, everything there is, and the keys that every run has."""
    lines = [
        "fedopt: experiments in federated nested optimisation",
        "",
        "  fedopt algo=fedmsa problem=mco                 one run",
        "  fedopt algo=fedmsa problem=mco algo.K=10       with another value",
        "  fedopt -m algo=fedmsa problem=mco seed=0,1,2   a sweep",
        "  fedopt algo=fedmsa problem=mco --cfg job       show the config and do not run",
        "  fedopt ... output_dir=DIR resume=true          go on with an interrupted run",
        "  fedopt-compare DIR...                          compare runs",
        "  fedopt-reproduce PAPER/NAME...                 a published figure; --list shows all",
    ]
    for group in GROUPS:
        names = options(group)
        if group == "preset" or not names:
            continue
        width = max(24, *(len(n) for n in names))
        lines += ["", f"{group}="]
        for n in names:
            head = (CONF / group / f"{n}.yaml").read_text().split("\n")[:2]
            comment = next((line[2:] for line in head if line.startswith("# ") and "@package" not in line), "")
            lines.append(f"  {n:<{width}} {comment}")
    lines += ["", "Keys of every run (algo.*, problem.*, ...: see --cfg job):", ""]
    body = (CONF / "config.yaml").read_text()
    lines += ["  " + text for text in body[body.index("\nseed:") + 1 : body.index("\nhydra:")].rstrip().split("\n")]
    return "\n".join(lines)
