"""Your own networks: any torch.nn.Module as a function of one flat vector of parameters.

Nothing that was sent runs code. A config names a class derived from nn.Module, or a function that is annotated to return one, and
gives it numbers. A text could name a file or an address: it is taken only where the annotation lists it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from importlib import import_module
from types import FunctionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedopt.config.build import imported
from fedopt.errors import UserError, first_line
from fedopt.networks.dropout import Dropout
from fedopt.networks.flat import FlatModel
from fedopt.randomness import Purpose, torch_seed, untouched

REMEDY = "a network here keeps nothing and takes each example by itself: nn.GroupNorm in place of BatchNorm"
DROPPING = "use nn.Dropout, or F.dropout(x, p, self.training)"
REMARK = "the model gives probabilities where losses take logits; leave out its last softmax"


class FlatModule(FlatModel):
    """A module whose parameters live in one flat vector, except frozen ones (requires_grad=False).

    With a key, for dropout, it is in training mode; without, in evaluation mode.
    """

    def __init__(self, module: nn.Module, input_shape: Sequence[int], autocast: torch.dtype | None = None):
        super().__init__(module, input_shape, autocast)
        self.dense = self.flattens = False
        self.module, self._dropping = deepcopy(module).eval(), module.train()
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        frozen = ((name, p.detach()) for name, p in module.named_parameters() if not p.requires_grad)
        self._constants = {**dict(frozen), **dict(module.named_buffers())}

    def _forward(self, flat: Tensor, x: Tensor, key: Tensor | None) -> Tensor:
        values = dict(zip(self._names, self._views(flat), strict=True))
        for name, value in self._constants.items():
            values[name] = value.to(flat.device, flat.dtype if value.is_floating_point() else value.dtype)
        module = self.module if key is None else self._dropping
        with differentiable(module), nullcontext() if key is None else Dropout(key):
            return torch.func.functional_call(module, values, (x.reshape(-1, *self.input_shape),))

    def split_last(self) -> tuple[FlatModel, FlatModel]:
        """As of FlatModel. Raises UserError for a module that does not say what comes last."""
        layers = self.module
        if not isinstance(layers, nn.Sequential) or len(layers) < 2 or not isinstance(layers[-1], nn.Linear):
            raise UserError("problem.model: must be an nn.Sequential that ends with nn.Linear, which is split off here")
        body, head = FlatModule(layers[:-1], self.input_shape, self.autocast), FlatModel(layers[-1:], (), self.autocast)
        body.random = self.random
        return body, head


@contextmanager
def differentiable(module: nn.Module) -> Iterator[None]:
    """Those of torch's kernels that have second derivatives."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with ExitStack() as without:
            without.enter_context(sdpa_kernel(SDPBackend.MATH))
            if any(isinstance(inner, nn.RNNBase) for inner in module.modules()):
                for backend in (torch.backends.mkldnn, torch.backends.cudnn):
                    without.callback(backend.set_flags, backend.set_flags(False)[0])
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def build(
    model: str | Mapping[str, Any],
    examples: Tensor,
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    autocast: torch.dtype | None = None,
) -> FlatModule:
    """The module that `problem.model` names: a dotted path, or that as `_target_` with keyword arguments beside it.

    examples: two of the data, [2, features], that it is tried on. Raises UserError for a module that does not fit these data, has
    state, or draws random numbers except by dropout.
    """
    node = {"_target_": model} if isinstance(model, str) else dict(model)
    if "_target_" not in node:
        raise UserError("problem.model._target_: is missing, the class of the network")
    key = f"problem.model={node['_target_']}"
    arguments = {str(name): value for name, value in node.items() if not str(name).startswith("_")}
    make = _factory(node["_target_"], key)
    _refuse_texts(make, arguments)
    with torch.random.fork_rng(devices=[]), _mistakes_of(key):
        torch.manual_seed(torch_seed(seed, Purpose.MODEL))
        module = make(**arguments)
        if not isinstance(module, nn.Module):
            raise UserError(f"{key}: gives {type(module).__name__}, not a torch.nn.Module")
        if not any(p.requires_grad for p in module.parameters()) or any(p.is_complex() for p in module.parameters()):
            raise UserError(f"{key}: has no parameters to train, or complex ones")
        with _mistakes_of(f"{key}, which cannot be copied; what a hook computes, torch.nn.utils.parametrizations can"):
            net = FlatModule(module, input_shape, autocast)
        net.random, net.remark = _tried(module, examples.detach().cpu().view(-1, *input_shape), classes, key)
    net.alone = _why_alone(net, examples)
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


@contextmanager
def _mistakes_of(what: str) -> Iterator[None]:
    """Raises UserError for whatever is raised."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {type(error).__name__}: {first_line(error)}") from error


def _tried(module: nn.Module, x: Tensor, classes: int, key: str) -> tuple[bool, str]:
    """Whether the module drops at random, and a remark on its outputs, or none.

    Raises UserError for outputs that are no logits, buffers that change, examples that depend on others, and other randomness.
    """
    probe = deepcopy(module).float()
    x = x.float() if x.is_floating_point() else x
    buffers = {name: value.clone() for name, value in probe.named_buffers()}

    def logits(given: Tensor, training: bool) -> tuple[Tensor, int]:
        dropout, wanted = Dropout(torch.zeros((), dtype=torch.int64)), [len(given), classes]
        guarded = untouched(key, given, DROPPING), _mistakes_of(f"{key} on a batch {list(given.shape)}")
        with torch.no_grad(), differentiable(probe), dropout if training else nullcontext(), guarded[0], guarded[1]:
            out = probe.train(training)(given)
        if not isinstance(out, Tensor) or list(out.shape) != wanted or not out.is_floating_point():
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(f"{key}: gives {shape}; it must give the logits of the {classes} classes, {wanted}")
        return out, dropout.drawn

    once = logits(x, training=False)
    if not torch.equal(once[0], logits(x, training=False)[0]):
        raise UserError(
            f"{key}: gives other logits when it is called again: it keeps something, or is random; {REMEDY}"
        )
    trained = logits(x, training=True)
    results = [(trained, logits(x[[0, 0]], training=True)), (once, logits(x[[0, 0]], training=False))]
    results.append((once, logits(x[[0, 0, 0]], training=False)))  # of another size
    if changed := [name for name, value in probe.named_buffers() if not torch.equal(value, buffers.get(name, value))]:
        owner = type(probe.get_submodule(changed[0].rpartition(".")[0])).__name__
        raise UserError(f"{key}: the buffer {changed[0]} of {owner} changes with every batch; {REMEDY}")
    for (out, _), (other, _) in results:
        if not torch.allclose(out[0], other[0], rtol=1e-3, atol=1e-3 * float(out[0].abs().max())):
            raise UserError(f"{key}: an example's logits depend on the others in its batch, or on chance; {REMEDY}")
    (_, drawn), (out, _) = trained, once
    probabilities = bool((out >= 0).all()) and torch.allclose(out.sum(1), torch.ones(len(x)))
    return drawn > 0, REMARK * probabilities


def _why_alone(net: FlatModule, examples: Tensor) -> str:
    """Why vmap cannot take gradients at a point for each client, or at one point for all; empty where it can."""
    flat = net.initial.to(examples.device, examples.dtype if examples.is_floating_point() else torch.float32)
    keys = [torch.zeros(2, dtype=torch.int64, device=flat.device)] if net.random else []
    gradient = torch.func.grad(lambda flat, x, *key: net(flat, x, *key).sum())
    try:
        for points, dim in ((flat.expand(2, -1), 0), (flat, None)):
            torch.func.vmap(gradient, (dim, *[0] * (1 + len(keys))))(points, examples[:, None], *keys)
    except Exception as error:  # torch.func has many ways to say so
        return first_line(error)
    return ""
