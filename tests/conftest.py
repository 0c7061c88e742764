"""Property tests draw the same examples every time, and may be slow on a loaded machine."""

import os

import torch
from hypothesis import settings

settings.register_profile("fedopt", deadline=None, derandomize=True, database=None)
settings.load_profile("fedopt")

torch.set_num_threads(1)  # tests are small, and several processes of them share the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that they start


def pytest_collection_modifyitems(items):
    """The longest tests first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: "torture" not in item.nodeid)
