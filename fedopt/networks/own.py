"""Networks of one's own: any torch.nn.Module as a function of one flat vector of parameters.

Nothing that was sent runs code: a config names a class derived from nn.Module, or a function whose annotation says that it returns
one, and gives it numbers; a text could name a file or an address, and is taken only where the annotation lists it.
"""

import inspect
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
    """A module whose parameters live in one flat vector, but for those that are frozen (requires_grad=False).

    It is in training mode where it is given a key, for dropout, and in evaluation mode otherwise.
    """

    def __init__(self, module: nn.Module, input_shape: Sequence[int], autocast: torch.dtype | None = None):
        super().__init__(module, input_shape, autocast)
        self.dense = self.flattens = False
        self.remark = ""
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
            raise UserError(
                "problem.model: the output layer is split off here: the network must be an nn.Sequential that ends with nn.Linear"
            )
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
    named: str | Mapping[str, Any],
    examples: Tensor,
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    autocast: torch.dtype | None = None,
) -> FlatModule:
    """The module that `problem.model` names: a dotted path, or that as `_target_` with keyword arguments beside it.

    examples: two of the data, [2, features], that it is tried on. Raises UserError for what is no network of these data, and for
    a network with state, or with randomness of its own.
    """
    node = {"_target_": named} if isinstance(named, str) else dict(named)
    if "_target_" not in node:
        raise UserError("problem.model._target_: is missing, the class of the network")
    said = f"problem.model={node['_target_']}"
    arguments = {str(key): value for key, value in node.items() if not str(key).startswith("_")}
    make = _factory(node["_target_"], said)
    _check_arguments(make, arguments, said)
    with torch.random.fork_rng(devices=[]), _telling(said):
        torch.manual_seed(torch_seed(seed, Purpose.MODEL))
        module = make(**arguments)
        if not isinstance(module, nn.Module):
            raise UserError(f"{said}: gives {type(module).__name__}, not a torch.nn.Module")
        _check_parameters(module, said)
        net = FlatModule(module, input_shape, autocast)
        net.random, net.remark = _check_outputs(module, examples.detach().cpu().view(-1, *input_shape), classes, said)
    net.alone = _why_alone(net, examples)
    return net


def _factory(path: Any, said: str) -> Callable[..., Any]:
    if str(path).startswith("torchvision."):
        import_module("fedopt.networks.torchvision_import")
    make = imported(path, said)
    kind = make
    if isinstance(make, FunctionType):
        try:
            kind = get_type_hints(make).get("return")
        except Exception:  # an annotation that names what is not there
            kind = None
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise UserError(
            f"{said}: is no torch.nn.Module class, and no function with the annotation `-> torch.nn.Module`"
        )
    return make


def _check_arguments(make: Callable[..., Any], arguments: Mapping[str, Any], said: str) -> None:
    signature = inspect.signature(make)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(f"{said}: {first_line(error)}; it takes {signature}") from None
    for key, value in arguments.items():
        listed = _listed(make, key)
        if not _is_plain(value) and value not in listed:
            lists = (
                f"one of {', '.join(map(str, listed))}" if listed else f'a text that {key}: Literal["{value}"] lists'
            )
            raise UserError(
                f"problem.model.{key}={value}: must be a number, true, false, null, a list of them, or {lists}"
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float)


def _listed(make: Callable[..., Any], key: str) -> tuple[Any, ...]:
    """The values that an argument's annotation lists."""
    try:
        hint = get_type_hints(make.__init__ if isinstance(make, type) else make).get(key)  # type: ignore[misc]
    except Exception:  # an annotation that names what is not there
        return ()
    return get_args(hint) if get_origin(hint) is Literal else ()


@contextmanager
def _telling(said: str) -> Iterator[None]:
    """Raises UserError for whatever is raised."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{said}: {type(error).__name__}: {first_line(error)}") from error


def _check_parameters(module: nn.Module, said: str) -> None:
    if complex_ones := [name for name, p in module.named_parameters() if p.is_complex()]:
        raise UserError(f"{said}: the parameter {complex_ones[0]} is complex; parameters must be real numbers, float32")
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"{said}: has no parameters to train")


def _check_outputs(module: nn.Module, x: Tensor, classes: int, said: str) -> tuple[bool, str]:
    """Whether the module drops at random, and a remark on its outputs, or none.

    Raises UserError for outputs that are no logits, for buffers that change, for examples that are not taken each by itself, and
    for other randomness than dropout's."""
    probe = deepcopy(module).float()
    x = x.float() if x.is_floating_point() else x
    batch = f"{said} on a batch {list(x.shape)}"
    before = {name: value.clone() for name, value in probe.named_buffers()}
    dropout = Dropout(torch.zeros((), dtype=torch.int64))

    def run(given: Tensor, training: bool) -> Tensor:
        dropout.drawn = 0
        drop, wanted = dropout if training else nullcontext(), [len(given), classes]
        with torch.no_grad(), differentiable(probe), drop, untouched(said, given, DROPPING), _telling(batch):
            out = probe.train(training)(given)
        if not isinstance(out, Tensor) or list(out.shape) != wanted or not out.is_floating_point():
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(f"{batch} gives {shape}; it must give the logits of the {classes} classes, {wanted}")
        for name, value in probe.named_buffers():
            if not torch.equal(value, before.get(name, value)):
                owner = type(probe.get_submodule(name.rpartition(".")[0])).__name__
                raise UserError(f"{said}: the buffer {name} of {owner} changes with every batch; {REMEDY}")
        return out

    drawn = 0
    for training in (True, False):
        out, other = run(x, training), run(x[[0, 0]], training)
        drawn += dropout.drawn
        if not torch.allclose(out[0], other[0], rtol=1e-3, atol=1e-3 * float(out[0].abs().max())):
            raise UserError(
                f"{said}: the logits of an example depend on the others in its batch, or on chance; {REMEDY}"
            )
    probabilities = bool((out >= 0).all()) and torch.allclose(out.sum(1), torch.ones(len(x)))
    return drawn > 0, REMARK * probabilities


def _why_alone(net: FlatModule, examples: Tensor) -> str:
    """Why a stack of clients cannot take a gradient at once, at a point of its own each or at one of all; empty where it can."""
    flat = net.initial.to(examples.device, examples.dtype if examples.is_floating_point() else torch.float32)
    keys = [torch.zeros(2, dtype=torch.int64, device=flat.device)] if net.random else []
    gradient = torch.func.grad(lambda flat, x, *key: net(flat, x, *key).sum())
    try:
        for points, dim in ((flat.expand(2, -1), 0), (flat, None)):
            torch.func.vmap(gradient, (dim, *[0] * (1 + len(keys))))(points, examples[:, None], *keys)
    except Exception as error:  # torch.func has many ways to say so
        return first_line(error)
    return ""
