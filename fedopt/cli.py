"""The `fedopt` command: Hydra composes the config, `run.execute` runs it.

Nothing here imports torch before a run starts, so that help and mistakes are answered at once.
"""

import os
import sys
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

import fedopt
from fedopt.command import GROUPS, Parser, answer
from fedopt.config import CONF, composed, composed_of, options, parsed, resolve
from fedopt.errors import UserError
from fedopt.results.folder import RunFolder, numbers_of, refuse_links, slug
from fedopt.settings import cores

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
        _refuse_hydra(given.overrides, ())
        config, chosen = composed_of(given.overrides, given.folders)
        if not given.cfg:
            return _single(resolve(config), chosen, given.overrides)
        print(OmegaConf.to_yaml(config, resolve=given.resolve).rstrip())
    return 0


def _refuse_hydra(overrides: Sequence[str], allowed: tuple[str, ...]) -> None:
    """Raises UserError for an override that sets up Hydra itself, which can be told to call anything."""
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key.partition("@")[0].split("/")[0].split(".")[0] == "hydra" and not key.startswith(allowed):
            raise UserError(
                f"{key}: is not for users; with -m, hydra/launcher and hydra.launcher.KEY choose how jobs run"
            )


def _single(resolved: dict[str, Any], chosen: dict[str, str], overrides: list[str]) -> int:
    from fedopt import run

    status, folder = run.execute(resolved, lambda: _run_path(resolved, chosen, overrides), overrides)
    if run.ranks.rank() == 0:
        print(_last_line(status, folder))
    return EXIT[status]


def _run_path(config: dict[str, Any], chosen: dict[str, str], overrides: list[str]) -> Path:
    """output_dir, else a folder named by the overrides; a further run with the same overrides gets the next number."""
    if config["output_dir"]:
        return Path(config["output_dir"])
    others = [word for word in overrides if word.split("=")[0] not in ("algo", "problem")]
    base = Path("outputs") / f"{chosen['algo']}_{chosen['problem']}" / slug(others)
    paths = [base, *(base.with_name(f"{base.name}.{n}") for n in range(2, 10_000))]
    free = next(n for n, path in enumerate(paths) if not RunFolder(path).used)
    return paths[free - 1] if config["resume"] and free else paths[free]


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
    """All combinations, by Hydra; what came out is said also when it was interrupted."""
    _refuse_hydra(overrides, ("hydra/launcher", "hydra.launcher."))
    folder = _prepare_sweep(overrides, folders)
    refuse_links(folder / name for name in ("multirun.yaml", "sweep.csv"))
    own = [word for path in folders for word in ("--config-dir", path)]
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [sys.argv[0], "--multirun", *own, *overrides, f"hydra.sweep.dir='{folder}'"]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors over instead of printing them
    try:
        _run_hydra()
    finally:
        sys.argv, full = before
        os.environ.pop("HYDRA_FULL_ERROR")
        if full is not None:
            os.environ["HYDRA_FULL_ERROR"] = full
        from fedopt.reproduce.sweep import report

        code = report(folder) if folder.is_dir() else 0
    return code


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _run_hydra(config: DictConfig) -> None:
    """One job of a sweep, which never raises so that the others go on."""
    job = HydraConfig.get()
    overrides = list(job.overrides.task)
    folder = RunFolder(Path(job.sweep.dir) / slug(overrides))
    parallel = OmegaConf.select(job.launcher, "n_jobs", default=1)
    jobs = cores() if parallel == -1 else parallel
    from fedopt.reproduce.sweep import job_of_many

    status = job_of_many(lambda: resolve(config), folder, overrides, jobs)
    print(f"{status:<12} {folder.path}", flush=True)
    if status == "interrupted":
        raise KeyboardInterrupt


def _prepare_sweep(texts: list[str], folders: list[str]) -> Path:
    """Check every combination of group choices, so that no mistyped name ends a sweep half-way, and name the sweep's folder."""
    overrides = parsed(texts)
    swept = [_alternatives(o) if o.key_or_group in GROUPS else _alternatives(o)[:1] for o in overrides]
    for combination in islice(product(*swept), 100):
        composed((o for o in combination if not o.startswith("hydra")), folders)
    chosen = [o.value() for o in overrides if o.key_or_group == "output_dir"]
    named = [t for t in texts if not t.startswith("hydra")]
    return Path(str(chosen[0])) if chosen else Path("outputs") / "multirun" / slug(named)


def _alternatives(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [override.input_line or ""]
    values = list(islice(override.sweep_string_iterator(), 100))
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
