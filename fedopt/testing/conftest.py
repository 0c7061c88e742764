"""Prepare pytest for the contract: register its markers, and report an error in a user's files as one line."""

import pytest

from fedopt.errors import UserError


def pytest_configure(config: pytest.Config) -> None:
    """Register the pytest markers of the contract, and import the files under test. pytest calls this hook at its start.

    Args:
        config: The settings of pytest.

    Raises:
        pytest.UsageError: A user's file cannot be read or imported.
    """
    for mark in ("full", "slow", "smoke"):
        config.addinivalue_line("markers", f"{mark}: of fedopt's own tests")
    try:
        from fedopt.testing import harness

        harness.pairs()
    except UserError as error:
        raise pytest.UsageError(str(error)) from None
