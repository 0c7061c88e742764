"""The `fedopt` command: Hydra composes the config, `run.execute` runs it.

Nothing here imports torch before a run starts, so that help and mistakes are answered at once.
"""

import os
import sys
from itertools import islice, product
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import fedopt
from fedopt.command import GROUPS, answer, extra_folders, say
from fedopt.config import CONF, check_preset, composed, options, resolve
from fedopt.errors import UserError
from fedopt.results.folder import RunFolder, slug
from fedopt.settings import cores

EXIT = {"finished": 0, "diverged": 3, "interrupted": 130}
_outcome: list[int | Exception] = []  # of a single run: its exit code, or what went wrong


def main() -> None:
    """Entry point of `fedopt` and `python -m fedopt`."""
    arguments = sys.argv[1:]
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors over instead of printing them
    _outcome.clear()
    try:
        answer(lambda: _dispatch(arguments), arguments, full_error=before == "1")
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


def _dispatch(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(help_text())
        return 0
    if "--version" in arguments:
        print(f"fedopt {fedopt.__version__}")
        return 0
    if any(a.startswith("--experimental-rerun") for a in arguments):
        raise UserError("--experimental-rerun reads a pickle, which can run code: give the overrides in run.json")
    multirun = bool({"-m", "--multirun"} & set(arguments))
    if multirun:
        folder = _prepare_sweep(arguments)
        sys.argv.append(f"hydra.sweep.dir='{folder}'")
        try:
            _run_hydra()
        finally:  # also when it was interrupted
            from fedopt.reproduce.sweep import report

            code = report(folder) if folder.is_dir() else 0
        return code
    check_preset(arguments, extra_folders(arguments))
    _run_hydra()
    outcome = _outcome[0] if _outcome else 0
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _run_hydra(config: DictConfig) -> None:
    """One run; in a sweep, one job of it, which never raises so that the others go on."""
    job = HydraConfig.get()
    overrides = list(job.overrides.task)
    if job.mode != RunMode.MULTIRUN:
        try:
            _outcome.append(_single(config, overrides))
        except Exception as error:  # raised again outside Hydra, which would add lines of its own
            _outcome.append(error)
        return
    folder = RunFolder(Path(job.sweep.dir) / slug(overrides))
    parallel = OmegaConf.select(job.launcher, "n_jobs", default=1)
    jobs = cores() if parallel == -1 else parallel
    from fedopt.reproduce.sweep import job_of_many

    status = job_of_many(lambda: resolve(config), folder, overrides, jobs)
    print(f"{status:<12} {folder.path}", flush=True)
    if status == "interrupted":
        raise KeyboardInterrupt


def _single(config: DictConfig, overrides: list[str]) -> int:
    resolved = resolve(config)
    from fedopt import run

    def locate() -> Path:
        path = _run_path(resolved, overrides)
        if resolved["resume"] and not RunFolder(path).used:
            say(f"resume=true: there is no run in {path} yet, so one begins")
        return path

    status, folder = run.execute(resolved, locate, overrides)
    if int(os.environ.get("RANK", "0")) == 0:
        print(_last_line(status, folder))
    return EXIT[status]


def _run_path(config: dict[str, Any], overrides: list[str]) -> Path:
    """output_dir, else a folder named by the overrides; a further run with the same overrides gets the next number."""
    if config["output_dir"]:
        return Path(config["output_dir"])
    choices = HydraConfig.get().runtime.choices
    base = (
        Path("outputs")
        / f"{choices['algo']}_{choices['problem']}"
        / slug([o for o in overrides if o.split("=")[0] not in ("algo", "problem")])
    )
    paths = [base, *(base.with_name(f"{base.name}.{n}") for n in range(2, 10_000))]
    free = next(n for n, path in enumerate(paths) if not RunFolder(path).used)
    return paths[free - 1] if config["resume"] and free else paths[free]


def _last_line(status: str, folder: RunFolder) -> str:
    summary = folder.summary()
    values = "  ".join(f"{name} {value:.5g}" for name, value in summary.get("final", {}).items() if value is not None)
    line = f"{status} after {summary.get('round')} rounds ({summary.get('seconds')} s): {values}"
    line += f"\nresults: {folder.path}"
    if status == "interrupted":
        line += f"\nto go on: the same command with output_dir='{folder.path}' resume=true"
    if status == "diverged":
        line += "\nthe last good state is in checkpoint.safetensors; smaller step sizes may help"
    return line


# Sweeps


def _prepare_sweep(arguments: list[str]) -> Path:
    """Check every combination of group choices, so that no mistyped name ends a sweep half-way, and name the sweep's folder."""
    texts = [a for a in arguments if "=" in a and not a.startswith("-")]
    overrides = OverridesParser.create().parse_overrides(texts)
    swept = [_alternatives(o) if o.key_or_group in GROUPS else _alternatives(o)[:1] for o in overrides]
    for combination in islice(product(*swept), 100):
        composed((o for o in combination if not o.startswith("hydra")), extra_folders(arguments))
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
