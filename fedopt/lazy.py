"""Names of a package that are imported when they are first used: the stub beside its ``__init__.py`` says where each comes from."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedopt.deprecated import removed


def exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: Its ``__name__``.
        file: Its ``__file__``. The stub, ``__init__.pyi``, has a line ``from MODULE import NAME as NAME`` for each name.
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
