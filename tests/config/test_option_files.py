"""Each file of the config groups that are no algorithm and no problem gives what it names."""

from importlib.util import find_spec

import pytest

from fedopt.config import Hardware, build_target
from fedopt.config.build import build
from fedopt.running import sinks
from fedopt.testing.harness import config, names


@pytest.mark.parametrize("group", ["partitioner", "hardware", "dataset", "logger"])
def test_groups_have_files_that_can_be_built(group):
    for option in names(group):
        missing = {"npz": ["path"], "csv": ["path", "label"], "images": ["path"]}.get(option, [])
        node = config(f"{group}={option}", *(f"{group}.{key}=x" for key in missing))[group]
        if group == "hardware":
            build(Hardware, node, group)
        elif group == "logger":
            libraries = {"tensorboard", "wandb"} & {*node}
            if all(map(find_spec, libraries)):
                assert len(sinks.loggers(node)) == len(libraries)
        elif node["_target_"] is not None:
            build_target(node, group)
