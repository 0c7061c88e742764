"""Trial runs of a user's module, on two examples, before training.

They find out whether the output depends on the parameters and on one example only, and which parameters are trained.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedopt.errors import UserError, first_line, some
from fedopt.networks.dropout import Dropout
from fedopt.networks.module import FlatModule, differentiable
from fedopt.randomness import Writes, untouched

REMEDY = (
    "a network must keep no state and take each example by itself: use nn.GroupNorm in place of BatchNorm, for instance"
)
DROPPING = "use nn.Dropout, or F.dropout(x, p, self.training)"
CONSTRAINT = "express a constraint by torch.nn.utils.parametrize"
PROBABILITIES = "the model's outputs look like probabilities, and the loss needs logits; leave out its last softmax"
KEY = torch.zeros((), dtype=torch.int64)  # of dropout
SHOWN = 5  # parameters in a message


@contextmanager
def mistakes_of(what: str) -> Iterator[None]:
    """Turn any exception raised inside the context into a UserError that begins with ``what``. A UserError passes unchanged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {type(error).__name__}: {first_line(error)}") from error


def remarks(net: FlatModule, x: Tensor, classes: int, key: str) -> list[str]:
    """Try a network, and return remarks for the user. Set its attributes ``random`` and ``modal`` to what the trial shows.

    Args:
        net: The network.
        x: Some examples. Two suffice, except to tell which parameters are idle.
        classes: The number of classes.
        key: The config's key and value, for messages.

    Raises:
        UserError: The network cannot be used.
    """
    x = x.float() if x.is_floating_point() else x
    net.random, probabilities = _tried(net.trained(net.initial.float()), x[[0, -1]], classes, key)
    return [PROBABILITIES] * probabilities + _not_trained(net, x, key)


def _tried(probe: nn.Module, x: Tensor, classes: int, key: str) -> tuple[bool, bool]:
    """Tell whether the module has dropout, and whether its outputs are probabilities.

    probe: the module. x: two examples. classes: their number of classes. key: for messages.

    Raises UserError if the outputs are not logits, or parameters or buffers change. Also raises it if an example's output
    depends on the other examples, or on randomness other than dropout.
    """
    parameters = dict(probe.named_parameters())
    before = {name: value.clone() for name, value in (parameters | dict(probe.named_buffers())).items()}

    what = "overwrites its parameter {} when it is called"
    writes = Writes((p, UserError(f"{key}: {what.format(name)}; {CONSTRAINT}")) for name, p in parameters.items())

    def logits(given: Tensor, training: bool) -> tuple[Tensor, int]:
        dropout, wanted = Dropout(KEY), [len(given), classes]
        guarded = untouched(key, given, DROPPING), mistakes_of(f"{key} on a batch {list(given.shape)}")
        inside = dropout if training else nullcontext()
        with torch.no_grad(), differentiable(probe), guarded[0], guarded[1], writes, inside:
            out = probe.train(training)(given)
        if not isinstance(out, Tensor) or list(out.shape) != wanted or not out.is_floating_point():
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(f"{key}: returns {shape}; it must return the logits of the {classes} classes, {wanted}")
        return out, dropout.drawn

    results = []
    for training in (False, True):
        once, again, two, three = (logits(x[rows], training) for rows in ([0, 1], [0, 1], [0, 0], [0, 0, 0]))
        if not torch.equal(once[0], again[0]):
            raise UserError(
                f"{key}: returns different logits when it is called again, so that it has state or is random; {REMEDY}"
            )
        results += [(once, two), *([] if training else [(once, three)])]  # masks depend on the size of a batch
    state = parameters | dict(probe.named_buffers())
    if changed := [name for name, value in state.items() if not torch.equal(value, before.get(name, value))]:
        owner = type(probe.get_submodule(changed[0].rpartition(".")[0])).__name__
        kind = "parameter" if changed[0] in parameters else "buffer"
        raise UserError(f"{key}: the {kind} {changed[0]} of {owner} changes when it is called; {REMEDY}")
    for (out, _), (other, _) in results:
        if not torch.allclose(out[0], other[0], rtol=1e-3, atol=1e-3 * float(out[0].abs().max())):
            raise UserError(
                f"{key}: the logits of an example depend on the other examples of its batch, or are random; {REMEDY}"
            )
    (out, _), drawn = results[0][0], results[-1][0][1]
    return drawn > 0, bool((out >= 0).all()) and torch.allclose(out.sum(1), torch.ones(2))


def _not_trained(net: FlatModule, x: Tensor, key: str) -> list[str]:
    """Return remarks on parameters that are not trained, or not used in evaluation. Set ``net.modal``.

    Its arguments are those of `remarks`. Raises UserError if no gradient reaches the parameters. Also raises it if the module
    uses copies of them that were made in __init__, or caches what it computed from them.
    """
    noise = torch.randn(2, net.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    flat = net.initial.float() * (1 + 0.1 * noise[0]) + 0.01 * noise[1]  # where none is zero, which hides others
    plain, parameters = net.trained(flat), [piece.detach().requires_grad_() for piece in net.views(flat)]
    two, outs, reached = x[[0, -1]], list[Tensor](), dict[str, dict[int, Tensor]]()
    own = {id(p): name for name, p in net.module.named_parameters()}
    for mode, at in (("training", KEY), ("evaluation", None)):
        net.at(net.views(net.initial.float()), two, at)  # which it may keep something of
        out = net.at(parameters, two, at)
        outs.append(out)
        reached[mode] = _leaves(out)
        if held := [own[which] for which in reached[mode] if which in own]:
            raise UserError(
                f"{key}: reads {some(held, SHOWN)} through something that __init__ made, such as a tuple or a "
                f"function, so that it would "
                f"not be trained; read self.{held[0]} in forward"
            )
        with torch.no_grad(), differentiable(plain), Dropout(KEY):
            wanted = plain.train(at is not None)(two)
        if not torch.allclose(out, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()), equal_nan=True):
            raise UserError(
                f"{key}: returns different logits than a second instance with the same parameters; it must not cache "
                f"what it computes "
                "from them, nor use random numbers other than torch's in __init__"
            )
        if not reached[mode].keys() >= {*map(id, parameters)}:  # a part may be for some examples alone
            reached[mode] |= _leaves(net.at(parameters, x, at))
    net.modal = not torch.equal(*outs)
    names = dict(zip(map(id, parameters), net.names, strict=True))
    trained, evaluated = reached.values()
    if not trained.keys() & names:
        raise UserError(
            f"{key}: no gradient reaches its parameters, so that nothing would be trained; remove detach() or no_grad()"
        )
    said = []
    if idle := [name for leaf, name in names.items() if leaf not in trained]:
        said.append(f"no gradient reaches {some(idle, SHOWN)}, so that this is not trained")
    if unused := [name for leaf, name in names.items() if leaf in trained and leaf not in evaluated]:
        said.append(f"{some(unused, SHOWN)} is trained, but not used in evaluation mode")
    if others := [str(list(leaf.shape)) for which, leaf in trained.items() if which not in names]:
        said.append(
            f"parameters {some(others, SHOWN)} are not registered, as those of layers in a list, and not trained; use nn.ModuleList"
        )
    return said


def _leaves(out: Tensor) -> dict[int, Tensor]:
    """Return the leaf tensors of the autograd graph behind ``out``, by id."""
    leaves, nodes, seen = dict[int, Tensor](), list[Any]([out.grad_fn]), set[Any]()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            leaves |= {id(node.variable): node.variable} if type(node).__name__ == "AccumulateGrad" else {}
    return leaves


def why_alone(net: FlatModule, examples: Tensor) -> str:
    """Return why vmap cannot differentiate the network, at one point per client or at a shared point; empty if it can.

    net: the network. examples: two of them.
    """
    flat = net.initial.to(examples.device, examples.dtype if examples.is_floating_point() else torch.float32)
    keys = [KEY.to(flat.device).expand(2)]
    gradient = torch.func.grad(lambda flat, x, *key: net(flat, x, *key).sum())
    try:
        for points, dim in ((flat.expand(2, -1), 0), (flat, None)):
            torch.func.vmap(gradient, (dim, *[0] * (1 + len(keys))))(points, examples[:, None], *keys)
    except Exception as error:  # torch.func has many ways to say so
        return first_line(error)
    return ""
