"""Packages whose public names are imported when they are first used.

The stub ``__init__.pyi`` next to a package's ``__init__.py`` lists the names and the modules that define them.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedopt.deprecated import removed


def exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package, so that a public name is imported when it is used.

    Args:
        package: The package's ``__name__``.
        file: The package's ``__file__``. Its stub has one line ``from MODULE import NAME as NAME`` for each public name.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    lines = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    modules = {alias.name: str(node.module) for node in lines for alias in node.names}

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(removed(f"{package}.{name}") or f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(modules[name]), name)

    names = sorted(modules)
    return attribute, lambda: names, names
