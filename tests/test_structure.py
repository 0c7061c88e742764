"""The house: its public names, and what answers at once imports no torch. `lint-imports` holds that imports point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedopt

PACKAGE = Path(fedopt.__file__).parent


def test_public_names():
    """Each can be had, and type checkers are told the same ones."""
    for name in fedopt.__all__:
        assert getattr(fedopt, name) is not None
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    told = {alias.asname for n in stub.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert told == set(fedopt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedopt.nothing


def test_imports_leave_the_environment_alone():
    """In a process that has loaded nothing yet, for the package and all its public names."""
    code = "import os; before = dict(os.environ); import fedopt; assert os.environ == before, 'by the package'\n"
    code += "for name in fedopt.__all__: getattr(fedopt, name); assert os.environ == before, name"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=600).returncode == 0


WITHOUT_TORCH = (
    "",
    ".api",
    ".commands.run",
    ".commands.answer",
    ".commands.report",
    ".commands.reproduce",
    ".metrics",
    ".results.identity",
)


def test_imports_no_torch():
    """One process imports all; it ends with the name of the first module that loads torch."""
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n"
    code += "    importlib.import_module(f'fedopt{name}')\n    if 'torch' in sys.modules: sys.exit(name)"
    command = [sys.executable, "-c", code, *WITHOUT_TORCH]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_ranks_load_what_would_keep_a_group():
    """Imported after a group has begun, this module would keep the group, and threads of gloo's, after its end."""
    code = "import sys, fedopt.federation.ranks; sys.exit('torch.distributed.nn.functional' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=600).returncode == 0


def test_templates_import_from_fedopt_alone():
    for path in (PACKAGE / "templates").glob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [node.module for node in imports if str(node.module).startswith("fedopt.")], path.name


def test_rooms_are_entered_by_their_faces():
    """What a room takes of another one stands in the other's `__init__.pyi`, or is a file, or what a file of that name is for.

    A face names nothing that nobody takes.
    """
    faces = {stub.parent.name: _names(stub) for stub in PACKAGE.glob("*/__init__.pyi")}
    wrong, taken = [], {(module.split(".")[1], name) for module, name in _imports(PACKAGE / "__init__.pyi")}
    for file in PACKAGE.rglob("*.py"):
        for module, name in _imports(file):
            _, room, *rest = module.split(".")
            if room in faces and room != file.relative_to(PACKAGE).parts[0]:
                taken.add((room, name))
                wrong += [f"{file}: {module}, {name}"] * (rest not in ([], [name]))
    assert not wrong
    taken.add(("bench", "enter"))  # for users
    unused = {(room, name) for room, names in faces.items() for name in names} - taken
    assert not unused


def _imports(file):
    """The module and the name of each import from a room."""
    nodes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom))
    rooms = (node for node in nodes if str(node.module).startswith("fedopt."))
    return [(node.module, alias.name) for node in rooms for alias in node.names]


def _names(stub):
    return [name for _, name in _imports(stub)]
