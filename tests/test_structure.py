"""The house: imports point one way, what answers at once imports no torch, and every file of conf can be chosen."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedopt

PACKAGE = Path(fedopt.__file__).parent
# Each room may import from itself and from those after it
ROOMS = [
    "cli", "help", "schema", "new", "api", "reproduce", "loop", "experiment", "algorithms", "results", "federation", "problems",
    "data",
]  # fmt: skip
SHARED = {  # what any room may use; they use each other alone
    "command", "config", "settings", "errors", "metrics", "randomness", "schedules", "inverse", "models", "modules", "dropout",
    "hardware", "torchvision_import", "interrupts", "mistakes", "own_code",
}  # fmt: skip


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported(path: Path) -> set[str]:
    """Rooms of fedopt that a file imports from, but for what only type checkers read."""
    tree = ast.parse(path.read_text())
    unread = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    skipped = {id(inner) for block in unread for inner in ast.walk(block)}
    found = set()
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and n.module and id(n) not in skipped:
            if n.module == "fedopt":
                found |= {alias.name for alias in n.names}
            elif n.module.startswith("fedopt."):
                found.add(room(n.module))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(path):
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if own in ("__init__", "__main__", "templates"):  # the templates are users' files
        return
    allowed = SHARED if own in SHARED else SHARED | set(ROOMS[ROOMS.index(own) :])
    assert imported(path) <= allowed


def test_public_names():
    """Each can be had, and type checkers are told the same ones."""
    for name in fedopt.__all__:
        assert getattr(fedopt, name) is not None
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    told = {alias.asname for n in stub.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert told == set(fedopt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedopt.nothing


@pytest.mark.parametrize(
    "module", ["fedopt", "fedopt.api", "fedopt.cli", "fedopt.command", "fedopt.metrics", "fedopt.results.identity"]
)
def test_imports_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=60).returncode == 0
