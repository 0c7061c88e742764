"""Which algorithms fit which problems, by the classes of problems that they name."""

from collections.abc import Collection, Mapping, Sequence

from fedopt.config.classes import about, about_all
from fedopt.config.files import Folders, class_path, options
from fedopt.errors import UserError


def refuse_misfit(algo: str, problem: str) -> None:
    """Raise UserError if an algorithm solves no problems of this class.

    Users' own classes pass, since nothing is known of them here: they are checked when they are built.

    Args:
        algo: Path of the algorithm's class.
        problem: Path of the problem's class.
    """
    if not all(path.startswith("fedopt.") for path in (algo, problem)):
        return
    solves, kind = (sorted(about(path)["fits"]) for path in (algo, problem))
    if solves and kind and not {*kind} & {*solves}:
        problems, methods = ("|".join(that_fit(*wanted)) for wanted in (("problem", solves), ("algo", kind)))
        raise UserError(
            f"algo and problem do not fit: this algorithm solves {', '.join(solves)} problems (problem={problems}), and this "
            f"problem is {kind[0]} (algo={methods})"
        )


def choice(lacking: Sequence[str], chosen: Mapping[str, str], folders: Folders) -> str:
    """Return a hint on what to choose from the first group that a command lacks.

    If the other group is set, the hint names fedopt's options that fit it.
    lacking: algo, problem or both. chosen: the option of each group. folders: config folders besides fedopt's.
    """
    group, *others = lacking
    other = "problem" if group == "algo" else "algo"
    path = "" if others else class_path(other, chosen[other], folders)
    if path.startswith("fedopt.") and (kinds := about(path)["fits"]):
        return f" of those that fit {chosen[other]}: {', '.join(that_fit(group, kinds))}"
    return f"; fedopt list {group} shows them"


def that_fit(group: str, classes: Collection[str]) -> list[str]:
    """Return fedopt's algorithms that solve one of these classes of problems, or fedopt's problems that belong to one.

    group: algo or problem. classes: the names of the classes, such as local_bilevel.
    """
    paths = {name: class_path(group, name) for name in options(group)}
    answers = about_all(paths.values())
    return [name for name, path in paths.items() if {*answers[path]["fits"]} & {*classes}]
