"""Your own networks: any torch.nn.Module as a function of one flat parameter vector.

A config that somebody sent must run no other code. So it may only name a subclass of nn.Module, or a function annotated to
return one, and give it numbers. A text could name a file or an address, so that the parameter's annotation must list it.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from types import FunctionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from fedopt.config import imported
from fedopt.errors import UserError
from fedopt.networks.module import FlatModule
from fedopt.networks.trial import mistakes_of, remarks, why_alone
from fedopt.randomness import Purpose, torch_seed


def build(
    model: str | Mapping[str, Any],
    examples: Tensor,
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    autocast: torch.dtype | None = None,
) -> FlatModule:
    """Build the user's network that `problem.model` names, and try it on examples.

    Args:
        model: A dotted path, or a mapping with the path as `_target_` and keyword arguments.
        examples: Some of the data, ``[2 or more, features]``, to try the module on.
        input_shape: The shape of an example.
        classes: The number of classes.
        seed: The seed of the initialisation.
        autocast: As in `FlatModel`.

    Raises:
        UserError: The module does not fit these data, has state, is random other than by dropout, or uses its parameters in a
            way that prevents training them.
    """
    made, key = maker(model, seed)
    module = made()
    with torch.random.fork_rng(devices=[]), mistakes_of(key):
        if not any(p.requires_grad for p in module.parameters()) or any(p.is_complex() for p in module.parameters()):
            raise UserError(
                f"{key}: has no trainable parameters, or complex ones; it must have real parameters with requires_grad"
            )
        with mistakes_of(f"{key}: cannot be copied; use torch.nn.utils.parametrizations in place of hooks"):
            deepcopy(module)  # as `Result.model` gives it
        net = FlatModule(module, input_shape, autocast)
        net.copy = made  # of which no function is bound to the first one
        net.remark = "; ".join(remarks(net, examples.detach().cpu().view(-1, *input_shape), classes, key))
    net.alone = why_alone(net, examples[[0, -1]])
    return net


def maker(model: str | Mapping[str, Any], seed: int) -> tuple[Callable[[], nn.Module], str]:
    """Return a function that makes the user's network, and the key that names it, for messages.

    model, seed: as in `build`. Raises UserError, as does the function, if it is no network or its arguments are not plain.
    """
    node = {"_target_": model} if isinstance(model, str) else dict(model)
    if "_target_" not in node:
        raise UserError("problem.model._target_: is missing; give the dotted path of the network's class")
    key = f"problem.model={node['_target_']}"
    arguments = {str(name): value for name, value in node.items() if not str(name).startswith("_")}
    make = _factory(node["_target_"], key)
    _refuse_texts(make, arguments)

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]), mistakes_of(key):
            torch.manual_seed(torch_seed(seed, Purpose.MODEL))
            module = make(**arguments)
        if not isinstance(module, nn.Module):
            raise UserError(f"{key}: returns {type(module).__name__}; it must return a torch.nn.Module")
        return module

    return made, key


def _factory(path: Any, key: str) -> Callable[..., Any]:
    if str(path).startswith("torchvision."):
        import_module("fedopt.networks.torchvision_import")
    make = imported(path, key)
    kind = _hints(make).get("return") if isinstance(make, FunctionType) else make
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise UserError(
            f"{key}: must be a subclass of torch.nn.Module, or a function annotated with `-> torch.nn.Module`"
        )
    return make


def _hints(function: Any) -> dict[str, Any]:
    """Return the type annotations by name; {} if one cannot be resolved."""
    try:
        return get_type_hints(function)
    except Exception:
        return {}


def _refuse_texts(make: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise UserError for an argument that holds anything but numbers, true, false, null and lists of these.

    A value that the annotation Literal[...] of the argument lists passes too. make: the class or function of the network.
    arguments: its keyword arguments.
    """
    hints = _hints(make.__init__ if isinstance(make, type) else make)  # type: ignore[misc]
    for name, value in arguments.items():
        hint = hints.get(name)
        texts = get_args(hint) if get_origin(hint) is Literal else ()
        if not _is_plain(value) and value not in texts:
            listed = (
                f"one of {', '.join(map(str, texts))}"
                if texts
                else f"a text that its annotation {name}: Literal[...] lists"
            )
            raise UserError(f"problem.model.{name}={value}: must be a number, true, false, null, a list, or {listed}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float)
