"""fedopt: experiments in federated nested optimisation.

The public names begin, read and compare runs from Python, and serve to write algorithms and problems. Each is imported when
it is first used, so that help and mistakes are answered without torch. `__init__.pyi` lists them for type checkers.
"""

import os

from fedopt.lazy import exports

PARENT = os.getppid()  # asked before anything that takes time: it is another one when that process was killed
__version__ = "0.5.0"

__getattr__, __dir__, __all__ = exports(__name__, __file__)
