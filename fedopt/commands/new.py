"""The command `fedopt new`: write the files of your own algorithm or problem, which can be run at once."""

import os
import sys
from importlib.util import find_spec
from itertools import product
from keyword import iskeyword
from pathlib import Path

from fedopt.commands.answer import Parser
from fedopt.config import options, project
from fedopt.console import show
from fedopt.errors import UserError
from fedopt.files import write_atomically

TEMPLATES = Path(__file__).parents[1] / "templates"
EXAMPLES = {  # (kind, class of problems) -> the example in the templates, and the overrides that choose it
    ("algo", "minimisation"): ("my_sgd", "algo=my_sgd problem=classification dataset=digits"),
    ("algo", "bilevel"): ("my_nest", "algo=my_nest problem=quadratic_bilevel"),
    ("algo", "minimax"): ("my_sgda", "algo=my_sgda problem=quadratic_minimax"),
    ("problem", "minimisation"): ("my_regression", "algo=fedmsa problem=my_regression algo.alpha=0.02"),
    ("problem", "bilevel"): ("my_weights", "algo=fednest problem=my_weights algo.beta=0.1"),
    ("problem", "minimax"): ("my_groups", "algo=local_sgda problem=my_groups algo.eta_x=0.02 algo.eta_y=0.02"),
    ("problem", "compositional"): ("my_risk", "algo=fedmsa problem=my_risk algo.alpha=0.05"),
}
TESTED = EXAMPLES["algo", "minimisation"][1]  # the overrides in the template test_own.py


def new(arguments: list[str]) -> None:
    """Write the files of a new algorithm or problem, and print how to run them: `fedopt new algo NAME`.

    The files are NAME.py, test_NAME.py and CONFIG/<algo or problem>/NAME.yaml in the project's folder. CONFIG is the config
    folder that fedopt.toml names, or myconf. If there is no fedopt.toml, one is written. No file is overwritten.

    Args:
        arguments: The arguments after `fedopt new`.

    Raises:
        UserError: The name cannot be used, or there is no template for the class of problems.
    """
    parser = Parser(prog="fedopt new", description="Write the files of your own algorithm or problem, ready to run.")
    parser.add_argument("kind", choices=["algo", "problem"], help="what to write")
    parser.add_argument("name", help="its name, such as my_sgd")
    classes = ", ".join(dict.fromkeys(problems for _, problems in EXAMPLES))
    parser.add_argument("--class", dest="problems", default="minimisation", help=f"{classes} (default: minimisation)")
    args = parser.parse_args(arguments)
    kind, name = args.kind, args.name
    if (kind, args.problems) not in EXAMPLES:
        classes = ", ".join(problems for other, problems in EXAMPLES if other == kind)
        raise UserError(f"--class {args.problems}: has no template for {kind}; choose one of {classes}")
    example, command = EXAMPLES[kind, args.problems]
    found, home = project.project(), project.home()
    conf = os.path.relpath(found.config_dir, home) if found else project.Project().config_dir
    files = {
        home / f"{name}.py": f"{example}.py",
        home / conf / kind / f"{name}.yaml": f"{example}.yaml",
        home / f"test_{name}.py": "test_own.py",
    }
    _check(kind, name, files)
    texts = {path: (TEMPLATES / template).read_text(encoding="utf-8") for path, template in files.items()}
    replacements = {TESTED: command, example: name, _camel(example): _camel(name), "myconf": conf}
    for path, old in product(texts, replacements):
        texts[path] = texts[path].replace(old, replacements[old])
    texts |= {} if found else {Path(project.NAME): project.TEXT}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    show(f"wrote {', '.join(map(str, texts))}")
    first = "" if find_spec("pytest") else ", after pip install 'fedopt[testing]'"
    show(f"to test it: python -m pytest {home / f'test_{name}.py'}{first}")
    show(f"to run it: fedopt {command.replace(example, name)}")


def _check(kind: str, name: str, files: dict[Path, str]) -> None:
    """Raise UserError if the name cannot be used.

    Args:
        kind: ``algo`` or ``problem``.
        name: The name that the user has chosen.
        files: The files to write, which must not exist yet, each with its template.
    """
    if not (name.isidentifier() and name.isascii() and name == name.lower()) or iskeyword(name):
        raise UserError(f"{name}: must be a Python identifier in lower case, and not a keyword, such as my_{kind}")
    if taken := [str(path) for path in files if path.exists()]:
        raise UserError(f"{taken[0]}: already exists; choose another name")
    if name in options(kind) or name in sys.stdlib_module_names or find_spec(name):
        raise UserError(f"{name}: is the name of a {kind} of fedopt or of an installed module; choose another name")


def _camel(name: str) -> str:
    """Return the name of a class in camel case for the name of its module, such as MySgd for my_sgd."""
    return name.title().replace("_", "")
