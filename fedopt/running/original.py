"""Imported first, and only, by a process that others will be copies of (`apart.warm`). It looks for no garbage: all stays."""

import atexit
import gc
import logging

gc.disable()
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # as in `__main__`
atexit.register(gc.freeze)
