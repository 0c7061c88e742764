"""Names that were removed or renamed, and what users read in their place. No other module mentions an old name.

An entry stays for one minor version after the one that removed its name.
"""

_ALONE = "was removed; set problem.alone=true; each client's model alone is now chosen by cross-validation, and fitted to its end"
_SMOOTH = "was removed; smooth the table of fedopt.frame with pandas, such as by rolling(5, center=True).mean()"
_LOOKS = "was removed; draw on matplotlib axes of any style and scale with comparison.draw(ax=...)"
_FORMAT = "was removed; convert the file in a few lines (docs/own-data.md, Other formats) and choose dataset=npz"

REMOVED = {  # a key, GROUP=OPTION, an option of a command line such as --live, or a Python name with its package
    # in 0.5, so until 0.6
    "hardware.processes": "was removed; start N processes with torchrun --nproc-per-node N -m fedopt ...",
    "problem.alone_step": _ALONE,
    "problem.alone_steps": _ALONE,
    "problem.strengths": "was removed; every pull has the strength problem.lam",
    "problem.penalty": "was removed; the perturbation is in the ball of radius problem.eps",
    "logger=mlflow": "was removed; choose logger=wandb or logger=tensorboard",
    "algo.kept": "was removed; DRFA weights the kept points as the local changes are",
    "algo.share": "was removed; in MFCGD each client keeps its own h, U and v",
    "trust": 'was removed; a fedopt.toml with the line python_path = "." lets commands import Python files of its folder',
    "interrupt": "was removed; fedopt.run raises KeyboardInterrupt, and fedopt.load(output_dir) returns the run",
    "dataset=leaf": _FORMAT,
    "dataset=libsvm": _FORMAT,
    "--schema": "was removed; fedopt --help KEY explains a key",
    "--long": "was removed; fedopt list algorithms CLASS shows full titles and where equations are from",
    "--live": "was removed; run fedopt report again to renew the page",
    "--claims": "was removed; run the same fedopt reproduce command again, or show the tables with fedopt report",
    "--keep": "was removed; of a search, copy tuned/ALGORITHM.yaml; of fedopt reproduce, scripts/keep copies the results",
    "--first-seed": "was removed; take more seeds with --seeds N",
    "--prune": "was removed; a search runs all of its trials to the end",
    "--smooth": _SMOOTH,
    "smooth": _SMOOTH,
    **dict.fromkeys(["--style", "--slides", "--logx", "style", "slides", "logx"], _LOOKS),
    "--again": "was removed; widen the range and search again if a best value is at its edge",
    "--results": "was removed; put results.parquet into OUT/full and give --out OUT",
    "--pages": "was removed; pages are in OUT/full/pages",
    "fedopt.bench.enter": "was removed; give the class a YAML file, and run fedopt bench enter",
}


def removed(name: str) -> str:
    """Return the message for a name that was removed or renamed, such as ``hardware.processes``; empty for any other name.

    Args:
        name: The name, as a key of `REMOVED`.
    """
    return f"{name}: {REMOVED[name]}" if name in REMOVED else ""
