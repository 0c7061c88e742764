"""Removed and renamed names, each with the message that a user of the old name sees. No other module mentions an old name.

An entry is kept for one minor version after the version that removed the name.
"""

_ALONE = "was removed; set problem.alone=true: local models are now chosen by cross-validation and fully trained"
_SMOOTH = "was removed; smooth the table of fedopt.frame with pandas, for example rolling(5, center=True).mean()"
_LOOKS = "was removed; draw on matplotlib axes of any style and scale with comparison.draw(ax=...)"
_FORMAT = "was removed; convert the file in a few lines (docs/own-data.md, Other formats) and choose dataset=npz"

REMOVED = {  # a config key, GROUP=OPTION, a command-line option such as --live, or a Python name with its package
    # Removed in 0.5, kept until 0.6
    "words": "is now overrides, the first argument of fedopt.run and fedopt.sweep; pass the same value there",
    "hardware.processes": "was removed; start N processes with torchrun --nproc-per-node N -m fedopt ...",
    "problem.alone_step": _ALONE,
    "problem.alone_steps": _ALONE,
    "problem.strengths": "was removed; all penalties have the strength problem.lam",
    "problem.penalty": "was removed; the perturbation stays in the ball of radius problem.eps",
    "logger=mlflow": "was removed; choose logger=wandb or logger=tensorboard",
    "algo.kept": "was removed; DRFA weights the stored points in the same way as the local changes",
    "algo.share": "was removed; in MFCGD each client keeps its own h, U and v",
    **dict.fromkeys(["algo.hostile", "algo.attack"], "was removed; set participation.hostile={who: 2, attack: alie}"),
    "trust": 'was removed; write python_path = "." into fedopt.toml to import Python files from its folder',
    "interrupt": "was removed; fedopt.run raises KeyboardInterrupt, and fedopt.load(output_dir) returns the run",
    "dataset=leaf": _FORMAT,
    "dataset=libsvm": _FORMAT,
    "--schema": "was removed; fedopt --help KEY explains a key",
    "--long": "was removed; fedopt list algorithms CLASS shows full titles and the sources of the equations",
    "--live": "was removed; run fedopt report again to update the page",
    "--claims": "was removed; repeat the fedopt reproduce command, or show the tables with fedopt report",
    "--keep": "was removed; copy tuned/ALGORITHM.yaml from a search; copy results of fedopt reproduce with scripts/keep",
    "--first-seed": "was removed; use more seeds with --seeds N",
    "--prune": "was removed; a search runs all trials to the end",
    "--smooth": _SMOOTH,
    "smooth": _SMOOTH,
    **dict.fromkeys(["--style", "--slides", "--logx", "style", "slides", "logx"], _LOOKS),
    "--again": "was removed; if the best value is at the edge of its range, widen the range and search again",
    "--results": "was removed; put results.parquet into OUT/full and pass --out OUT",
    "--pages": "was removed; the pages are in OUT/full/pages",
    "fedopt.toolbox.drawn_iterate": "is now fedopt.toolbox.sampled_iterate; import that name",
    "fedopt.bench.enter": "was removed; write a YAML file for the class and run fedopt bench enter",
}


def removed(name: str) -> str:
    """Return the message for a name that was removed or renamed; empty for any other name.

    Args:
        name: The name as it is written in `REMOVED`, such as ``hardware.processes``.
    """
    return f"{name}: {REMOVED[name]}" if name in REMOVED else ""
