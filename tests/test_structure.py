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
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "module",
    [
        "fedopt",
        "fedopt.api",
        "fedopt.commands.run",
        "fedopt.commands.answer",
        "fedopt.commands.report",
        "fedopt.metrics",
        "fedopt.results.identity",
    ],
)
def test_imports_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=60).returncode == 0


def test_ranks_load_what_would_keep_a_group():
    """Imported after a group has begun, this module would keep the group, and threads of gloo's, after its end."""
    code = "import sys, fedopt.federation.ranks; sys.exit('torch.distributed.nn.functional' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=60).returncode == 0
