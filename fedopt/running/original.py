"""Imported first, and only, by a process that others will be copies of (`apart.warm`). It looks for no garbage: all stays."""

import atexit
import gc

gc.disable()
atexit.register(gc.freeze)
