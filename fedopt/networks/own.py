"""Your own networks: any torch.nn.Module as a function of one flat vector of parameters.

Nothing that was sent runs code. A config names a class derived from nn.Module, or a function that is annotated to return one, and
gives it numbers. A text could name a file or an address: it is taken only where the annotation lists it.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from types import FunctionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from fedopt.config.build import imported
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
    """Return the module that `problem.model` names: a dotted path, or that as `_target_` with keyword arguments beside it.

    examples: some of the data, [2 or more, features], that it is tried on. Raises UserError for a module that does not fit these
    data, has state, draws random numbers except by dropout, or reads or writes its parameters in a way that cannot be trained.
    """
    node = {"_target_": model} if isinstance(model, str) else dict(model)
    if "_target_" not in node:
        raise UserError("problem.model._target_: is missing, the class of the network")
    key = f"problem.model={node['_target_']}"
    arguments = {str(name): value for name, value in node.items() if not str(name).startswith("_")}
    make = _factory(node["_target_"], key)
    _refuse_texts(make, arguments)

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]), mistakes_of(key):
            torch.manual_seed(torch_seed(seed, Purpose.MODEL))
            return make(**arguments)

    module = made()
    if not isinstance(module, nn.Module):
        raise UserError(f"{key}: gives {type(module).__name__}, not a torch.nn.Module")
    with torch.random.fork_rng(devices=[]), mistakes_of(key):
        if not any(p.requires_grad for p in module.parameters()) or any(p.is_complex() for p in module.parameters()):
            raise UserError(f"{key}: has no parameters to train, or complex ones")
        with mistakes_of(f"{key}, which cannot be copied; what a hook computes, torch.nn.utils.parametrizations can"):
            deepcopy(module)  # as `Result.model` gives it
        net = FlatModule(module, input_shape, autocast)
        net.copy = made  # of which no function is bound to the first one
        net.remark = "; ".join(remarks(net, examples.detach().cpu().view(-1, *input_shape), classes, key))
    net.alone = why_alone(net, examples[[0, -1]])
    return net


def _factory(path: Any, key: str) -> Callable[..., Any]:
    if str(path).startswith("torchvision."):
        import_module("fedopt.networks.torchvision_import")
    make = imported(path, key)
    kind = _hints(make).get("return") if isinstance(make, FunctionType) else make
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise UserError(f"{key}: is no torch.nn.Module class, and no function annotated with `-> torch.nn.Module`")
    return make


def _hints(function: Any) -> dict[str, Any]:
    """The annotations, by name; empty where they name something that is not there."""
    try:
        return get_type_hints(function)
    except Exception:
        return {}


def _refuse_texts(make: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises UserError for an argument that is no number and no list of numbers, unless its annotation lists it."""
    hints = _hints(make.__init__ if isinstance(make, type) else make)  # type: ignore[misc]
    for name, value in arguments.items():
        hint = hints.get(name)
        texts = get_args(hint) if get_origin(hint) is Literal else ()
        if not _is_plain(value) and value not in texts:
            listed = f"one of {', '.join(map(str, texts))}" if texts else f"a text that {name}: Literal[...] lists"
            raise UserError(f"problem.model.{name}={value}: must be a number, true, false, null, a list, or {listed}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float)
