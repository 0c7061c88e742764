"""Trial runs of a custom module on a few examples before training.

They check that the output depends on the parameters and on one example at a time, and find out which parameters are
trained.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from fedopt.errors import UserError, first_line, joined
from fedopt.networks.dropout import Dropout
from fedopt.networks.module import FlatModule, differentiable
from fedopt.randomness import untouched

REMEDY = "a network must keep no state and process each example separately, for instance with nn.GroupNorm instead of BatchNorm"
DROPPING = "use nn.Dropout or F.dropout(x, p, self.training), and dropout=0 in attention and LSTMs"
PROBABILITIES = "the model's outputs look like probabilities, and the loss needs logits; remove the final softmax"
KEY = torch.zeros((), dtype=torch.int64)  # key of the dropout masks
SHOWN = 5  # parameters named in a message


@contextmanager
def user_errors(what: str) -> Iterator[None]:
    """Return a context that turns any exception raised inside it into a UserError. A UserError passes unchanged.

    Args:
        what: Beginning of the error message; the message of the exception follows.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {type(error).__name__}: {first_line(error)}") from error


def remarks(net: FlatModule, x: Tensor, classes: int, key: str) -> list[str]:
    """Try a network on examples, and return remarks for the user, such as that some parameters are not trained.

    The attribute ``net.random`` is set: whether the network has dropout.

    Args:
        net: The network.
        x: Two or more examples. With more examples, a parameter is less likely to seem untrained by chance.
        classes: Number of classes.
        key: The config key and its value, for messages.

    Raises:
        UserError: The network cannot be used.
    """
    x = x.float() if x.is_floating_point() else x
    net.random, probabilities = _tried(net.trained(net.initial.float()), x[[0, -1]], classes, key)
    return [PROBABILITIES] * probabilities + _not_trained(net, x, key)


def _tried(probe: nn.Module, x: Tensor, classes: int, key: str) -> tuple[bool, bool]:
    """Find out whether a module has dropout and whether its outputs look like probabilities.

    Args:
        probe: The module.
        x: Two examples.
        classes: Number of classes.
        key: The config key and its value, for messages.

    Returns:
        Whether the module has dropout, and whether its outputs look like probabilities instead of logits.

    Raises:
        UserError: The outputs are not logits; parameters or buffers change; or the output for an example depends on other
            examples, or on randomness other than dropout.
    """
    state = {**dict(probe.named_parameters()), **dict(probe.named_buffers())}
    before, sampled = {name: value.clone() for name, value in state.items()}, 0

    def logits(rows: list[int], training: bool) -> Tensor:
        nonlocal sampled
        given, wanted, dropout = x[rows], [len(rows), classes], Dropout(KEY)
        guarded, inside = user_errors(f"{key} on a batch {list(given.shape)}"), dropout if training else nullcontext()
        with torch.no_grad(), differentiable(probe), untouched(key, given, DROPPING), guarded, inside:
            out = probe.train(training)(given)
        sampled += dropout.sampled
        if not isinstance(out, Tensor) or list(out.shape) != wanted or not out.is_floating_point():
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(f"{key}: returns {shape}; it must return the logits of the {classes} classes, {wanted}")
        return out

    for training, others in ((True, [0, 0]), (False, [0, 0, 0])):  # dropout masks may depend on the batch size
        out, again, other = (logits(rows, training) for rows in ([0, 1], [0, 1], others))
        if not torch.equal(out, again):
            raise UserError(f"{key}: returns other logits when called again, so it has state or is random; {REMEDY}")
        if changed := [name for name, value in state.items() if not torch.equal(value, before[name])]:
            raise UserError(f"{key}: {changed[0]} changes when it is called; {REMEDY}")
        if not torch.allclose(out[0], other[0], rtol=1e-3, atol=1e-3 * float(out[0].abs().max())):
            raise UserError(f"{key}: the logits of an example depend on the rest of the batch, or are random; {REMEDY}")
    return sampled > 0, bool((out >= 0).all()) and torch.allclose(out.sum(1), torch.ones(2))


def _not_trained(net: FlatModule, x: Tensor, key: str) -> list[str]:
    """Return a list with one remark that names the parameters that no gradient reaches; [] if there are none.

    Args:
        net: The network.
        x: Some examples.
        key: The config key and its value, for messages.

    Raises:
        UserError: No gradient reaches any parameter.
    """
    views = [view.detach().requires_grad_() for view in net.views(net.initial.float())]
    out = net.at(views, x, KEY).sum()
    gradients = torch.autograd.grad(out, views, allow_unused=True) if out.requires_grad else [None] * len(views)
    idle = [name for name, gradient in zip(net.names, gradients, strict=True) if gradient is None]
    if len(idle) == len(views):
        raise UserError(f"{key}: no gradient reaches its parameters; remove detach() or no_grad() from its forward()")
    return [f"no gradient reaches {joined(idle, SHOWN)}, so this is not trained"] if idle else []


def find_vmap_error(net: FlatModule, examples: Tensor) -> str:
    """Return the reason why vmap cannot differentiate the network; empty if it can.

    Two cases are tried: each client has its own parameter vector, and all clients share one.

    Args:
        net: The network.
        examples: Two examples.
    """
    flat = net.initial.to(examples.device, examples.dtype if examples.is_floating_point() else torch.float32)
    keys = [KEY.to(flat.device).expand(2)]
    gradient = torch.func.grad(lambda flat, x, *key: net(flat, x, *key).sum())
    try:
        for points, dim in ((flat.expand(2, -1), 0), (flat, None)):
            torch.func.vmap(gradient, (dim, *[0] * (1 + len(keys))))(points, examples[:, None], *keys)
    except Exception as error:  # torch.func raises many different exceptions
        return first_line(error)
    return ""
