"""The command `fedopt tune`: search for good values of each method's keys, with the same number of trials for all methods."""

import argparse
from pathlib import Path

from fedopt.bench import SAMPLERS
from fedopt.commands.answer import Parser, add_launcher, answer, launcher_of, positive
from fedopt.config import key_of, outputs
from fedopt.console import ctrl_c_kept, show
from fedopt.console.say import say
from fedopt.errors import need


def main() -> None:
    """Entry point of `fedopt tune`."""
    answer(_main)


def _main() -> int:
    given = _arguments()
    need("fedopt tune", "optuna", "tune")
    from fedopt.analysis import print_table
    from fedopt.bench import (
        How,
        comparing,
        planned_searches,
        remarks,
        repeating,
        search_all,
        value_of,
        winners,
        with_values,
        write_searches,
    )

    how = How(given.trials, given.seeds, given.sampler, given.seed)
    launcher = launcher_of(given)
    chosen = {key_of(text): text.partition("=")[2] for text in given.overrides}
    names = [chosen[key] for key in ("algo", "problem") if key in chosen]
    folder = given.out or outputs() / "tune" / "_".join(names).replace(",", "-").replace("/", "-")
    searches = planned_searches(given.overrides, given.folders, given.metric, given.budget, how, folder)
    for search in searches:
        ranges = ", ".join(f"{key.removeprefix('algo.')} in {values}" for key, values in search.ranges.items())
        show(f"{search.name}: {search.planned} trials, {how.seeds} seeds each, by {search.metric.name}: {ranges}")
    try:
        with ctrl_c_kept():
            search_all(searches, folder, launcher)
    except KeyboardInterrupt:
        say(launcher.stopped)
        return 130
    if not (good := with_values(searches)):
        return 1
    written = write_searches(good, folder)
    print_table(winners(good), right=["trials", "diverged"])
    show(*(f"wrote {path}" for path in written), *remarks(good))
    show(*(f"to run it: {repeating(search)}" for search in good))
    best = min(good, key=lambda search: search.best.loss)
    first = ", ".join(search.algo for search in good if search.best.loss == best.best.loss)
    show(f"best: {first}, {best.metric.name} {value_of(best, best.best)}; results: {folder}")
    show(*(f"next: {line}" for line in comparing(good, folder)))
    return int(len(good) < len(searches))


def _arguments() -> argparse.Namespace:
    about = "Search for good hyperparameters, with equal trials, seeds and budget for all algorithms."
    parser = Parser(prog="fedopt tune", description=f"{about} Repeat the command to resume a search.")
    add = parser.add_argument
    ranges = "log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH), choice(A,B)"
    overrides = f"algo=NAME,... problem=NAME, settings, and ranges such as 'algo.eta=log(0.001,1)': {ranges}"
    add("overrides", nargs="+", metavar="KEY=VALUE", help=f"{overrides} (default ranges: from the algorithm's file)")
    add("--metric", help="the metric to optimise (default: the problem's first on validation data, else its first)")
    budget = "the budget of each run, such as comm_rounds=300; required for several algorithms"
    add("--budget", metavar="KEY=VALUE", help=budget)
    trials = "trials of each algorithm, in addition to its defaults (default: 30)"
    add("--trials", type=positive, default=30, metavar="N", help=trials)
    add("--seeds", type=positive, default=2, metavar="N", help="seeds of each trial; the median counts (default: 2)")
    add("--sampler", choices=SAMPLERS, default="tpe", help="how trials are chosen (default: tpe)")
    first = "the seed of the sampler (default: 0)"
    add("--seed", type=lambda text: positive(text, least=0), default=0, metavar="N", help=first)
    add("--jobs", "-j", type=positive, default=1, metavar="J", help="number of parallel processes (default: 1)")
    add_launcher(parser)
    add("--out", type=Path, metavar="DIR", help="output folder (default: outputs/tune/<algorithms>_<problem>)")
    add("--config-dir", dest="folders", action="append", default=[], metavar="DIR", help="your config folder")
    return parser.parse_intermixed_args()
