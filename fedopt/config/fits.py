"""The algorithms that fit a problem: an algorithm names the classes of problems that it solves."""

from collections.abc import Collection, Mapping, Sequence

from fedopt.config.classes import about, about_all
from fedopt.config.files import Folders, class_path, options
from fedopt.errors import UserError


def refuse_misfit(algo: str, problem: str) -> None:
    """Check that an algorithm solves a problem. Classes that are not part of fedopt are checked later, when they are built.

    Args:
        algo: The dotted path of the algorithm's class.
        problem: The dotted path of the problem's class.

    Raises:
        UserError: The algorithm does not solve such problems. The message lists alternatives.
    """
    if not all(path.startswith("fedopt.") for path in (algo, problem)):
        return
    solves, kind = (sorted(about(path)["fits"]) for path in (algo, problem))
    if solves and kind and not {*kind} & {*solves}:
        problems, methods = ("|".join(that_fit(*wanted)) for wanted in (("problem", solves), ("algo", kind)))
        fit = f"this problem is {kind[0]}; choose algo={methods}, or a {' or '.join(solves)} problem={problems}"
        raise UserError(f"algo and problem do not fit: {fit}")


def choice(lacking: Sequence[str], chosen: Mapping[str, str], folders: Folders) -> str:
    """Return a hint on what to choose for a missing algorithm or problem.

    If one of the two is chosen, the hint lists the options of fedopt that fit it.

    Args:
        lacking: The missing config groups: algo, problem or both.
        chosen: The chosen option of each config group.
        folders: The user's config folders.
    """
    group, *others = lacking
    other = "problem" if group == "algo" else "algo"
    path = "" if others else class_path(other, chosen[other], folders)
    if path.startswith("fedopt.") and (kinds := about(path)["fits"]):
        return f"; these fit {chosen[other]}: {', '.join(that_fit(group, kinds))}"
    return f"; fedopt list {group} shows all"


def that_fit(group: str, classes: Collection[str]) -> list[str]:
    """Return the algorithms of fedopt that solve one of these classes of problems, or the problems that belong to one.

    Args:
        group: ``algo`` or ``problem``.
        classes: The names of the classes, such as local_bilevel.
    """
    paths = {name: class_path(group, name) for name in options(group)}
    answers = about_all(paths.values())
    return [name for name, path in paths.items() if {*answers[path]["fits"]} & {*classes}]
