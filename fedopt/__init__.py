"""fedopt: experiments in federated nested optimisation.

The public names start, read and compare runs from Python, and are the building blocks of custom algorithms and problems.
Each name is imported when it is first used, so that help and error messages do not wait for torch. `__init__.pyi` lists the
names for type checkers.
"""

import os

from fedopt.lazy import exports

PARENT = os.getppid()  # read first: the number changes when the parent process is killed
__version__ = "0.5.0"

__getattr__, __dir__, __all__ = exports(__name__, __file__)
