"""Custom networks: any torch.nn.Module as a function of one flat parameter vector.

A config may only name a subclass of nn.Module, or a function that is annotated to return one.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from types import FunctionType
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from fedopt.config import imported
from fedopt.errors import UserError
from fedopt.networks.module import FlatModule
from fedopt.networks.trial import find_vmap_error, remarks, user_errors
from fedopt.randomness import Purpose, torch_seed


def build(
    model: str | Mapping[str, Any],
    examples: Tensor,
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    autocast: torch.dtype | None = None,
) -> FlatModule:
    """Build the custom network that `problem.model` names, and try it on examples.

    Args:
        model: A dotted path, or a mapping with the path as ``_target_`` and keyword arguments.
        examples: Two or more examples, ``[n, features]``, to try the module on.
        input_shape: Shape of an example.
        classes: Number of classes.
        seed: Seed of the initialisation.
        autocast: Type in which products and convolutions are computed. None: the type of the parameters.

    Raises:
        UserError: The module does not accept these data, has state, is random in ways other than dropout, or uses its
            parameters in a way that prevents training them.
    """
    made, key = maker(model, seed)
    module = made()
    with torch.random.fork_rng(devices=[]), user_errors(key):
        if not any(p.requires_grad for p in module.parameters()) or any(p.is_complex() for p in module.parameters()):
            raise UserError(f"{key}: must have trainable parameters (requires_grad), and none that are complex numbers")
        with user_errors(f"{key}: cannot be copied; use torch.nn.utils.parametrizations in place of hooks"):
            deepcopy(module)  # `Result.model` returns a copy
        net = FlatModule(module, input_shape, autocast)
        net.copy = made  # creates a new module, with no functions bound to the first one
        net.remark = "; ".join(remarks(net, examples.detach().cpu().view(-1, *input_shape), classes, key))
    net.vmap_error = find_vmap_error(net, examples[[0, -1]])
    return net


def maker(model: str | Mapping[str, Any], seed: int) -> tuple[Callable[[], nn.Module], str]:
    """Return a function that creates the custom network, and the config key that names the network in messages.

    Args:
        model: A dotted path, or a mapping with the path as ``_target_`` and keyword arguments.
        seed: Seed of the initialisation.

    Raises:
        UserError: The path does not name a network. The returned function raises it too.
    """
    node = {"_target_": model} if isinstance(model, str) else dict(model)
    if "_target_" not in node:
        raise UserError("problem.model._target_: is missing; give the dotted path of the network's class")
    key = f"problem.model={node['_target_']}"
    arguments = {str(name): value for name, value in node.items() if not str(name).startswith("_")}
    make = _factory(node["_target_"], key)

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]), user_errors(key):
            torch.manual_seed(torch_seed(seed, Purpose.MODEL))
            module = make(**arguments)
        if not isinstance(module, nn.Module):
            raise UserError(f"{key}: returns {type(module).__name__}; it must return a torch.nn.Module")
        return module

    return made, key


def _factory(path: Any, key: str) -> Callable[..., Any]:
    """Import the class or function that creates the network.

    Args:
        path: The dotted path.
        key: The config key and its value, for messages.

    Raises:
        UserError: It is not a subclass of nn.Module, nor a function annotated to return one.
    """
    if str(path).startswith("torchvision."):
        import_module("fedopt.networks.torchvision_import")
    make = kind = imported(path, key)
    if isinstance(make, FunctionType):
        with user_errors(f"{key}: its annotations"):
            kind = get_type_hints(make).get("return")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise UserError(f"{key}: must be a subclass of torch.nn.Module, or a function annotated `-> torch.nn.Module`")
    return make
