"""The house: its public names, and what answers at once imports no torch. `lint-imports` holds that imports point one way."""

import ast
import os
import re
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


LIBRARIES = ("optuna", "submitit", "plotly", "pyarrow", "pytest", "tensorboard", "wandb")  # of the extras
BARE = f"""
import sys
sys.modules.update(dict.fromkeys({LIBRARIES}))
from fedopt import *
import fedopt.commands.run, pydoc
pydoc.render_doc(fedopt)
try:
    tune("algo=fedavg problem=classification", output_dir="searches")
except UserError as error:
    print(error)
sys.argv = "fedopt -m algo=fedavg problem=classification --launcher slurm".split()
fedopt.commands.run.main()
"""


def test_without_extras(tmp_path):
    """All public names can be had and their help read; what needs an extra names it in one line."""
    command = [sys.executable, "-c", BARE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.stdout == "fedopt.tune needs optuna, which is not installed; run pip install 'fedopt[tune]'\n"
    slurm = "--launcher slurm needs submitit, which is not installed; run pip install 'fedopt[slurm]'"
    assert done.stderr == f"fedopt: {slurm}\n"
    assert not list(tmp_path.iterdir())


def test_a_home_that_cannot_be_written_is_not_mentioned(tmp_path):
    """A command draws as elsewhere, in a folder of the system's for temporary files."""
    home = {"HOME": "/dev/null", "XDG_CONFIG_HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "FEDOPT_PICTURES": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "MPLCONFIGDIR"} | home
    run = [sys.executable, "-m", "fedopt", "algo=fedmsa", "problem=mco", "budget.rounds=2", "output_dir=run"]
    done = subprocess.run(
        run, cwd=tmp_path, env=environment | {"PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert not re.search("(?i)matplotlib|mkdir", done.stderr)
    assert (tmp_path / "run" / "metrics.png").exists()


FORKING = {"fork", "forkpty"}  # of os, pty, and as the names of multiprocessing's contexts
WITHOUT_THREADS = {"forked.py", "torture"}  # a process of one thread that makes all of its copies, which it sees to


def test_no_process_is_forked_beside_threads():
    """Such a copy lacks OpenMP's threads, and waits for them for ever where OMP_NUM_THREADS is more than 1."""
    root = PACKAGE.parent
    scripts = [
        path
        for path in (root / "scripts").iterdir()
        if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env python")
    ]
    files = [*PACKAGE.rglob("*.py"), *(root / "tests").rglob("*.py"), *scripts]
    assert not [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in files
        if file.name not in WITHOUT_THREADS and file != Path(__file__)
        for node in ast.walk(ast.parse(file.read_text()))
        if _forks(node)
    ]


def _forks(node):
    """Whether a node names a fork, or starts processes in multiprocessing's default way, which is a fork on Linux."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "ProcessPoolExecutor":
        return len(node.args) < 2 and "mp_context" not in {keyword.arg for keyword in node.keywords}
    if isinstance(node, ast.ImportFrom) and node.module in ("os", "pty", "multiprocessing"):
        return not {alias.name for alias in node.names}.isdisjoint(FORKING | {"Pool", "Process"})
    default = {"multiprocessing.Pool", "multiprocessing.Process"}
    copies = FORKING | {f"{module}.{name}" for module in ("os", "pty") for name in FORKING} | default
    return isinstance(node, ast.Attribute | ast.Constant) and ast.unparse(node).strip("'") in copies


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

    A package exports nothing that nobody takes.
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
    unused = {(room, name) for room, names in faces.items() for name in names} - taken
    assert not unused


def _imports(file):
    """The module and the name of each import from a room."""
    nodes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom))
    rooms = (node for node in nodes if str(node.module).startswith("fedopt."))
    return [(node.module, alias.name) for node in rooms for alias in node.names]


def _names(stub):
    return [name for _, name in _imports(stub)]
