"""Property tests draw the same examples every time, and may be slow on a loaded machine."""

from hypothesis import settings

settings.register_profile("fedopt", deadline=None, derandomize=True, database=None)
settings.load_profile("fedopt")
