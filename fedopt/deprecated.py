"""Names that were removed or renamed, and what users read in their place. No other module mentions an old name.

An entry stays for one minor version after the one that removed its name.
"""

_ALONE = "was removed; set problem.alone=true; each client's model alone is now chosen by cross-validation, and fitted to its end"

REMOVED = {  # a key, GROUP=OPTION, an option of a command line such as --live, or a Python name with its package
    # in 0.5, so until 0.6
    "hardware.processes": "was removed; start N processes with torchrun --nproc-per-node N -m fedopt ...",
    "problem.alone_step": _ALONE,
    "problem.alone_steps": _ALONE,
    "problem.strengths": "was removed; every pull has the strength problem.lam",
    "problem.penalty": "was removed; the perturbation is in the ball of radius problem.eps",
    "logger=mlflow": "was removed; choose logger=wandb or logger=tensorboard",
    "--schema": "was removed; fedopt --help KEY explains a key",
    "--live": "was removed; run fedopt-report again to renew the page",
    "--prune": "was removed; a search runs all of its trials to the end",
    "--again": "was removed; widen the range and search again if a best value is at its edge",
}


def removed(name: str) -> str:
    """Return the message for a name that was removed or renamed, such as ``hardware.processes``; empty for any other name.

    Args:
        name: The name, as a key of `REMOVED`.
    """
    return f"{name}: {REMOVED[name]}" if name in REMOVED else ""
