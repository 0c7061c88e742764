"""What the commands beside `fedopt` share: mistakes are answered in one line."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fedopt.cli import explain
from fedopt.errors import UserError


class Parser(argparse.ArgumentParser):
    """Raises UserError for a mistake."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists the options")


def answer(work: Callable[[], int | None]) -> None:
    """Do the work and exit with the code that it returns, if any; with 2 for a mistake of the user's."""
    try:
        code = work()
    except (UserError, HydraException, OmegaConfBaseException, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"fedopt: {explain(error, [])}", file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)
