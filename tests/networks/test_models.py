"""Networks of one flat vector against torch.nn.Sequential with the same parameters, and own networks against themselves."""

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from support import networks
from support.cases import few
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from fedopt.data.examples import cross_entropy
from fedopt.errors import UserError
from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.networks import Batch
from fedopt.networks import custom as modules
from fedopt.networks import flat as models
from fedopt.networks.dropout import Dropout
from fedopt.testing.harness import leaves, small, steps

SMALL = [  # name, widths, (channels, height, width), classes
    ("linear", [], (1, 3, 4), 5),
    ("softmax", [], (2, 3, 4), 5),
    ("linear", [7], (2, 3, 4), 5),  # has no hidden layers whatever the widths
    ("mlp", [], (1, 3, 4), 5),
    ("mlp", [6], (1, 3, 4), 3),
    ("mlp", [6, 8, 5], (2, 3, 4), 3),
    ("cnn", [], (1, 8, 8), 4),
    ("cnn", [], (3, 9, 6), 2),  # pooling drops odd rows and columns
]


def sequential(name, widths, shape, classes):
    """The network of a name, written out."""
    channels, height, width = shape
    if name == "cnn":
        first, second = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        pooled = (height // 2 // 2) * (width // 2 // 2)
        layers = [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(32 * pooled, classes))
    if name == "vgg11":  # configuration A of Simonyan & Zisserman
        layers, before = [], channels
        for after in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
            if after == "pool":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
                before = after
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * (height // 32) * (width // 32), classes))
    sizes = [channels * height * width, *(widths if name == "mlp" else []), classes]
    layers = [nn.Flatten()]
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b, bias=name != "softmax"), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def assert_same_function(model, reference, flat, x, shape):
    nn.utils.vector_to_parameters(flat, reference.to(flat.dtype).parameters())
    with torch.no_grad():
        expected = reference(x.reshape(-1, *shape))
    torch.testing.assert_close(model(flat, x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "widths", "shape", "classes"), SMALL)
def test_forward(name, widths, shape, classes):
    model = models.build(name, widths, shape, classes, seed=0)
    torch.manual_seed(1)
    flat = torch.randn(model.dim, dtype=torch.float64)
    x = torch.randn(6, math.prod(shape), dtype=torch.float64)
    assert_same_function(model, sequential(name, widths, shape, classes), flat, x, shape)


@pytest.mark.parametrize(
    ("name", "widths", "shape", "classes", "count"),
    [
        ("linear", [], (1, 28, 28), 10, 784 * 10 + 10),
        ("softmax", [], (1, 28, 28), 10, 784 * 10),
        ("mlp", [200], (1, 28, 28), 10, 157_000 + 2_010),
        ("mlp", [200, 100], (1, 28, 28), 10, 784 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10),
        ("cnn", [], (1, 28, 28), 10, (9 + 1) * 16 + (9 * 16 + 1) * 32 + (32 * 7 * 7 + 1) * 10),
        ("cnn", [], (3, 32, 32), 10, (27 + 1) * 16 + (9 * 16 + 1) * 32 + (32 * 8 * 8 + 1) * 10),
    ],
)
def test_parameter_count(name, widths, shape, classes, count):
    model = models.build(name, widths, shape, classes, seed=0)
    assert model.dim == sum(model.sizes) == len(model.initial) == count


@pytest.mark.parametrize(("name", "widths", "shape"), [("mlp", [300, 200], (1, 28, 28)), ("cnn", [], (3, 32, 32))])
def test_initial_values_have_the_scale_of_pytorch(name, widths, shape):
    model = models.build(name, widths, shape, 10, seed=0)
    assert model.initial.dtype == torch.float32
    assert not model.initial.requires_grad
    reference = sequential(name, widths, shape, 10)
    nn.utils.vector_to_parameters(model.initial.clone(), reference.parameters())
    for layer in reference:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for values in (layer.weight, layer.bias):  # uniform on [-bound, bound]
                assert values.abs().max() <= bound * (1 + 1e-6)
            many = layer.weight.detach().reshape(-1)
            deviation = 5 / math.sqrt(len(many))
            assert float(many.mean()) / bound == pytest.approx(0, abs=deviation)
            assert float(many.std()) / bound == pytest.approx(1 / math.sqrt(3), abs=deviation)


@pytest.mark.parametrize(("name", "widths", "shape"), [("mlp", [6], (1, 4, 4)), ("cnn", [], (1, 4, 4))])
def test_initial_values_depend_on_the_seed_alone(name, widths, shape):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = models.build(name, widths, shape, 3, seed=7).initial
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(models.build(name, widths, shape, 3, seed=7).initial, first)
    assert not torch.equal(models.build(name, widths, shape, 3, seed=8).initial, first)


@pytest.mark.parametrize(("name", "widths", "shape", "classes"), [SMALL[4], SMALL[6]])
def test_vmap_over_parameters(name, widths, shape, classes):
    model = models.build(name, widths, shape, classes, seed=0)
    torch.manual_seed(3)
    flats = torch.randn(4, model.dim, dtype=torch.float64)
    x = torch.randn(4, 5, math.prod(shape), dtype=torch.float64)
    stacked = torch.func.vmap(model)(flats, x)
    torch.testing.assert_close(stacked, torch.stack([model(*one) for one in zip(flats, x, strict=True)]))
    shared = torch.func.vmap(model, in_dims=(0, None))(flats, x[0])
    torch.testing.assert_close(shared, torch.stack([model(flat, x[0]) for flat in flats]))


@pytest.mark.parametrize(("name", "widths", "shape"), [("mlp", [6], (1, 4, 4)), ("cnn", [], (1, 4, 4))])
def test_autocast(name, widths, shape):
    """Products have the 8 bits of bfloat16, parameters, logits and gradients stay float32."""
    exact = models.build(name, widths, shape, 3, seed=0)
    cast = models.build(name, widths, shape, 3, seed=0, autocast=torch.bfloat16)
    assert not cast.dense
    x = torch.randn(4, 5, math.prod(shape), generator=torch.Generator().manual_seed(1))

    def gradient(model):
        return torch.func.grad(lambda flat, x: model(flat, x).square().sum())

    for of, bound in ((lambda model: model, 0.02), (gradient, 0.2)):  # a maximum that flips changes a gradient's way
        values = [torch.func.vmap(of(model), in_dims=(None, 0))(model.initial, x) for model in (exact, cast)]
        assert values[1].dtype == torch.float32
        assert 1e-5 < (values[1] - values[0]).norm() / values[0].norm() < bound


@pytest.mark.full
def test_vgg11():
    shape = (3, 32, 32)
    model = models.build("vgg11", [], shape, 10, seed=0)
    maps = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    assert model.dim == sum((9 * a + 1) * b for a, b in itertools.pairwise(maps)) + (512 + 1) * 10
    x = torch.randn(1, 3 * 32 * 32, generator=torch.Generator().manual_seed(0))
    assert model(model.initial, x).shape == (1, 10)
    reference = sequential("vgg11", [], shape, 10)
    assert_same_function(model, reference, model.initial.double(), x.double(), shape)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn", (1, 3, 8), r"4 x 4 pixels or more, not \[1, 3, 8\]"),
        ("vgg11", (3, 28, 28), r"32 x 32 pixels or more, not \[3, 28, 28\]"),
        ("vgg11", (1, 32, 32), "3 channels, not 1"),
        ("resnet", (3, 32, 32), "there is no such model.*mlp"),
    ],
)
def test_unfit_images_and_names(name, shape, message):
    with pytest.raises(UserError, match=rf"problem\.model={name}.*{message}"):
        models.build(name, [], shape, 10, seed=0)


def batch_of(x, y, weight, *keys):
    return Batch(x, y, weight, torch.zeros_like(y), keys)


@pytest.mark.parametrize(
    ("name", "widths", "dropout"),
    [("linear", [], 0), ("softmax", [], 0), ("mlp", [5], 0), ("mlp", [6, 4, 5], 0), ("mlp", [9, 8], 0.4)],
)
def test_gradient_written_out(name, widths, dropout):
    """Backpropagation by hand = autograd, alone and in a stack, with uneven and zero weights."""
    model = models.build(name, widths, (1, 3, 4), 7, seed=0, dropout=dropout)
    generator = torch.Generator().manual_seed(1)
    flat = model.initial.double() + 0.3 * torch.randn(2, model.dim, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 6, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(7, (2, 6), generator=generator)
    weight = torch.tensor([[0.5, 0.1, 0.2, 0.2, 0, 0], [0.3, 0.3, 0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)
    keys = torch.tensor([3, 4])

    def loss(flat, x, y, weight, key):
        logits = model(flat, x, key if dropout else None)
        return torch.nn.functional.cross_entropy(logits, y, reduction="none") @ weight

    def gradient(flat, x, y, weight, key):
        return model.gradient(flat, batch_of(x, y, weight, *([key] if dropout else [])))

    expected = torch.stack([torch.func.grad(loss)(*of) for of in zip(flat, x, y, weight, keys, strict=True)])
    alone = [gradient(*of) for of in zip(flat, x, y, weight, keys, strict=True)]
    torch.testing.assert_close(torch.stack(alone), expected)
    torch.testing.assert_close(torch.func.vmap(gradient)(flat, x, y, weight, keys), expected)
    of_first = batch_of(x[0], y[0], weight[0])
    points = torch.stack([model.gradient(point, of_first) for point in flat])
    torch.testing.assert_close(model.gradient(flat, of_first), points)


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(
    ("name", "widths", "dropout"),
    [("linear", [], 0), ("softmax", [], 0), ("mlp", [5], 0), ("mlp", [6, 4], 0), ("mlp", [9, 8], 0.4)],
)
def test_gradient_steps_in_place(name, widths, dropout, tuned):
    """Four steps = x - eta (autograd's gradient - that at an anchor of all clients + plus), alone and in a stack, written over x
    and over nothing else."""
    model, eta = models.build(name, widths, (1, 3, 4), 7, seed=0, dropout=dropout), 0.3
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    flat, plus, x = model.initial.double() + 0.3 * normal(2, model.dim), normal(2, model.dim), normal(2, 6, 12)
    y, weight = torch.randint(7, (2, 6), generator=generator), normal(2, 6).abs()
    tuning, keys = (normal(7), normal(7)) if tuned else None, torch.tensor([3, 4])
    anchor = model.initial.double() + 0.3 * normal(model.dim)
    untouched = [x, y, weight, plus, anchor, *(tuning or ())]
    before = [t.clone() for t in untouched]

    def loss(flat, x, y, weight, key):
        logits = model(flat, x, key if dropout else None)
        logits = logits * tuning[0] + tuning[1] if tuned else logits
        return torch.nn.functional.cross_entropy(logits, y, reduction="none") @ weight

    def four_steps(flat, plus, x, y, weight, key):
        for correction, reference in ((None, None), (plus, None), (plus, anchor), (None, anchor)):
            examples = batch_of(x, y, weight, *([key] if dropout else []))
            flat = model.descend(flat, examples, eta, correction, tuning, reference)
        return flat

    expected = []
    for at, correction, *batch in zip(flat, plus, x, y, weight, keys, strict=True):
        at_anchor = torch.func.grad(loss)(anchor, *batch)
        for more in (0, correction, correction - at_anchor, -at_anchor):
            at = at - eta * (torch.func.grad(loss)(at, *batch) + more)
        expected.append(at)
    alone, stacked = flat.clone(), flat.clone()
    for at, *of in zip(alone, plus, x, y, weight, keys, strict=True):
        assert four_steps(at, *of) is at
    stepped = torch.func.vmap(four_steps)(stacked, plus, x, y, weight, keys)
    for result in (alone, stacked, stepped):
        torch.testing.assert_close(result, torch.stack(expected), rtol=1e-12, atol=1e-13)
    assert all(torch.equal(a, b) for a, b in zip(untouched, before, strict=True))


def test_gradient_steps_on_a_batch_and_an_anchor_that_all_clients_share():
    """The same as for each client alone."""
    model = models.build("mlp", [5, 4], (1, 3, 4), 7, seed=0)
    flat = model.initial + 0.3 * torch.randn(3, model.dim, generator=torch.Generator().manual_seed(2))
    batch = batch_of(torch.ones(6, 12), torch.arange(6), torch.full((6,), 1 / 6))

    def step(point):
        return model.descend(point, batch, 0.3, None, None, model.initial)

    expected = torch.stack([step(point.clone()) for point in flat])
    torch.testing.assert_close(torch.func.vmap(step)(flat.clone()), expected)


@pytest.mark.parametrize(("name", "autocast"), [("cnn", None), ("mlp", torch.bfloat16)])
def test_gradients_that_are_not_written_out(name, autocast):
    model = models.build(name, [5], (1, 4, 4), 3, seed=0, autocast=autocast)
    assert not model.dense


@pytest.mark.full
def test_a_torch_without_the_private_names_computes_the_same():
    """Which tell whether a tensor is one of a stack of clients'. A newer torch may drop them."""
    cases = [
        ("fedavg", "classification", "problem.model=mlp"),
        ("fednest", "hyper_representation", "problem.dropout=0.5"),
        ("fedmsa", "quadratic_bilevel"),
    ]
    code = f"""
import json, sys, types, warnings, torch
private = sys.modules["torch._C._functorch"]
sys.modules["torch._C._functorch"] = types.ModuleType("torch._C._functorch")
import fedopt.networks.stacked
sys.modules["torch._C._functorch"] = private  # torch itself has them
warnings.filterwarnings("ignore", "There is a performance drop")
from fedopt.testing.harness import leaves, small, steps
print(json.dumps([[v.tolist() for v in leaves(steps(small(*case), 2)[-1])] for case in {cases}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    for case, values in zip(cases, json.loads(done.stdout), strict=True):
        for value, expected in zip(values, leaves(steps(small(*case), 2)[-1]), strict=True):
            torch.testing.assert_close(expected.new_tensor(value), expected, rtol=1e-9, atol=1e-12)


# Networks of one's own

IMAGES, TOKENS = (1, 8, 8), (7,)
OWN = [
    (networks.Normed, IMAGES),
    (networks.Convolutions, IMAGES),
    (networks.Attention, IMAGES),
    (networks.Words, TOKENS),
]


def some(shape, *clients):
    generator = torch.Generator().manual_seed(2)
    size = (*clients, 4, math.prod(shape))
    if shape == TOKENS:
        return torch.randint(30, size, generator=generator)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def own(name, x=None, shape=IMAGES, **arguments):
    x = some(shape) if x is None else x
    return modules.build({"_target_": f"support.networks.{name}", **arguments}, x, shape, 10, seed=0)


def plain(cls, net, flat, shape, x, v):
    """The loss of a module, its gradient, and its Hessian times v, by torch.autograd on the module itself."""
    module = cls().double().eval()
    module.load_state_dict(net.module.double().state_dict())
    nn.utils.vector_to_parameters(flat.clone(), module.parameters())
    parameters = list(module.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        loss = module(x.view(-1, *shape)).logsumexp(1).square().sum()
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    along = sum((g * p).sum() for g, p in zip(gradient, pieces(v, parameters), strict=True))
    product = torch.autograd.grad(along, parameters, materialize_grads=True)
    return loss.detach(), nn.utils.parameters_to_vector(gradient).detach(), nn.utils.parameters_to_vector(product)


def pieces(v, parameters):
    parts = v.split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


@pytest.mark.parametrize(("cls", "shape"), OWN)
def test_derivatives_of_an_own_network(cls, shape):
    """Loss, gradient and Hessian-vector product are those of the plain module, for one client and in a stack of three."""
    net, x = own(cls.__name__, shape=shape), some(shape, 3)
    generator = torch.Generator().manual_seed(3)
    flats, v = (torch.randn(3, net.dim, generator=generator, dtype=torch.float64) * 0.3 for _ in range(2))
    assert not net.random
    assert bool(net.vmap_error) == (
        cls is networks.Words
    )  # the LSTM writes its gates over, which need not be of each client yet

    def loss(flat, x):
        return net(flat, x).logsumexp(1).square().sum()

    def derivatives(flat, x, v):
        (gradient, value), pull = torch.func.vjp(lambda flat: torch.func.grad_and_value(loss)(flat, x), flat)
        return value, gradient, pull((v, torch.zeros_like(value)))[0]

    stacked = torch.func.vmap(derivatives)(flats, x, v)
    for i, of_one in enumerate(zip(flats, x, v, strict=True)):
        expected = plain(cls, net, of_one[0], shape, *of_one[1:])
        flat = flats[i].clone().requires_grad_()  # as one client by itself: without torch.func
        value = loss(flat, x[i])
        (gradient,) = torch.autograd.grad(value, flat, create_graph=True)
        (product,) = torch.autograd.grad(gradient @ v[i], flat)
        for found in ([part[i] for part in stacked], derivatives(*of_one), [value, gradient, product]):
            torch.testing.assert_close(list(found), list(expected), rtol=1e-9, atol=1e-9)


def test_an_own_network_begins_where_its_seed_says():
    first, again, other = (
        modules.build("support.networks.Normed", some(IMAGES), IMAGES, 10, seed) for seed in (4, 4, 5)
    )
    assert torch.equal(first.initial, again.initial)
    assert not torch.equal(first.initial, other.initial)
    assert first.dim == 64 * 6 + 6 + 6 + 6 + 60 + 10
    assert own("Normed", width=9, activation="relu").dim == 64 * 9 + 9 + 9 + 9 + 90 + 10


def test_frozen_parameters_stay():
    net = own("Frozen")
    assert net.dim == 6 + 6 + 60 + 10
    x = some(IMAGES).float()
    expected = net.module(x.view(-1, *IMAGES))
    torch.testing.assert_close(net(net.initial, x), expected)


def test_autocast_of_an_own_network():
    x = some(IMAGES).float()
    net = modules.build("support.networks.Normed", x[:2], IMAGES, 10, 0, torch.bfloat16)
    cast, exact = net(net.initial, x), own("Normed")(net.initial, x)
    assert cast.dtype == torch.float32
    assert 1e-5 < (cast - exact).norm() / exact.norm() < 0.05


# Dropout


def test_masks_are_functions_of_a_key():
    """They keep the share that they should, and scale it; another key, another call and another place draw anew."""
    drop, x = Dropout(torch.tensor(5)), torch.ones(400, 500, dtype=torch.float64)
    first, second = drop.of_numbers(x, 0.3), drop.of_numbers(x, 0.3)
    assert set(first.unique().tolist()) == {0.0, 1 / 0.7}
    for mask in (first, second, Dropout(torch.tensor(6)).of_numbers(x, 0.3)):
        assert float((mask > 0).double().mean()) == pytest.approx(0.7, abs=5 * math.sqrt(0.21 / x.numel()))
    kept = torch.stack([first, second, Dropout(torch.tensor(6)).of_numbers(x, 0.3)]).flatten(1) > 0
    correlation = np.corrcoef(kept.double().numpy())
    assert np.abs(correlation - np.eye(3)).max() < 5 / math.sqrt(x.numel())
    for lag in (1, 2, 500):
        pair = kept[0].double()[:-lag], kept[0].double()[lag:]
        assert abs(np.corrcoef(torch.stack(pair).numpy())[0, 1]) < 5 / math.sqrt(x.numel())
    assert torch.equal(Dropout(torch.tensor(5)).of_numbers(x, 0.3), first)
    padded = Dropout(torch.tensor(5)).of_numbers(torch.ones(600, 500), 0.3)
    assert torch.equal(padded[:400] > 0, first > 0)
    assert Dropout(torch.tensor(5)).of_numbers(x, 1.0).eq(0).all()
    channels = Dropout(torch.tensor(5)).of_channels(torch.ones(50, 6, 3, 3), 0.5)
    assert torch.equal(channels.amax((2, 3)), channels.amin((2, 3)))
    assert 0.3 < float((channels > 0).double().mean()) < 0.7


@pytest.mark.parametrize(("name", "arguments"), [("Dropped", {}), ("layers", {})])
def test_an_own_network_drops_by_its_key(name, arguments):
    net, x = own(name, **arguments), some(IMAGES)
    assert net.random
    assert net.vmap_error == ""
    flat, keys = net.initial.double(), torch.arange(3)
    calm, one = net(flat, x), net(flat, x, keys[0])
    assert torch.equal(net(flat, x, keys[0]), one)
    assert not torch.allclose(net(flat, x, keys[1]), one)
    torch.testing.assert_close(calm, net(flat, x))
    stacked = torch.func.vmap(net, (None, None, 0))(flat, x, keys)
    torch.testing.assert_close(stacked, torch.stack([net(flat, x, key) for key in keys]))


def test_hidden_units_of_mlp_are_dropped():
    """Each is zero or, at 0.5, twice as large, of each example by itself; the output layer drops nothing."""
    net, x = models.build("mlp", [400], (6,), 3, 0, dropout=0.5), torch.randn(50, 6, generator=torch.manual_seed(0))
    body, head = net.split_last()
    assert (net.random, body.random, head.random) == (True, True, False)
    W, of_head = net.initial.split([body.dim, head.dim])
    calm, dropped = body(W, x), body(W, x, torch.tensor(3))
    ratio = (dropped / calm)[calm > 1e-3]
    assert set(ratio.round(decimals=5).tolist()) == {0.0, 2.0}
    assert float(ratio.mean()) == pytest.approx(1, abs=5 / math.sqrt(len(ratio)))
    assert not torch.equal(dropped[0] > 0, (dropped * (calm[:1] > 0))[1] > 0)
    torch.testing.assert_close(net(net.initial, x, torch.tensor(3)), head(of_head, dropped))
    torch.testing.assert_close(net(net.initial, x), head(of_head, calm))
    with pytest.raises(UserError, match=r"problem\.dropout=0\.5.*problem\.model=mlp"):
        small("fednest", "hyper_representation", "problem.model=linear", "problem.dropout=0.5")


def test_no_dropout_is_not_random():
    assert not own("Attention").random
    assert not own("layers", p=0.0).random


WHERE = [  # algorithm, problem, network
    ("fedavg", "classification", "Dropped"),
    ("fedavg", "classification", "Attention"),
    ("scaffold", "classification", "Convolutions"),
    ("fed_norm_sgda", "robust_nn", "Dropped"),
    ("fed_norm_sgda", "fair_classification", "Normed"),
    ("zo_hfl", "hierarchical", "Dropped"),
    ("fedmsa", "imbalanced_mnist", "Attention"),
    ("fednest", "imbalanced_mnist", "Dropped"),
    ("localbsgvrm", "hyper_representation", "layers"),
    ("fednest", "hyper_representation", "layers"),
]
OF_MLP = [("fednest", "hyper_representation", None), ("fedmsa", "imbalanced_mnist", None)]


@pytest.mark.parametrize("B", [pytest.param("null", marks=pytest.mark.slow), "4"])
@pytest.mark.parametrize(
    ("algo", "problem", "name"),
    few([*WHERE, *OF_MLP], lambda case: case in (WHERE[0], WHERE[5], OF_MLP[0]), pytest.mark.slow),
)
def test_engines_agree_on_networks_that_drop(algo, problem, name, B):
    """All at once = one by one, dropout included; another seed drops otherwise. name: of the own network, or mlp's own dropout."""
    network = [f"problem.model=support.networks.{name}"] if name else ["problem.dropout=0.5", "problem.norms=0.05"]
    setting = [*network, *(["algo.B=" + B] if algo != "zo_hfl" else [])]
    states = []
    for engine in (Vectorised(), OneByOne(), Vectorised(2)):
        e = small(algo, problem, *setting)
        e.federation.engine = engine
        states.append(steps(e, 2)[-1])
    for state in states[1:]:
        for a, b in zip(tree_leaves(state), tree_leaves(states[0]), strict=True):
            torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-8, atol=1e-9)
    values = e.original.evaluate(*e.algorithm.output(states[0]))
    assert all(math.isfinite(value) for value in values.values())


def test_dropout_is_drawn_anew_in_every_step(monkeypatch):
    """Of every client, round and local step, with full batches too."""
    seen = []
    begin = Dropout.__init__
    monkeypatch.setattr(Dropout, "__init__", lambda self, key: seen.append(key) or begin(self, key))
    e = small("fedavg", "classification", "problem.model=support.networks.Dropped", "algo.B=null", "algo.tau=2")
    seen.clear()
    e.federation.engine = OneByOne()
    steps(e, 2)
    assert len({int(key) for key in seen}) == len(seen) == 2 * 3 * 2


def test_a_network_that_vmap_cannot_run():
    e = small("fedavg", "classification", "problem.model=support.networks.Branch")
    assert isinstance(e.federation.engine, OneByOne)
    assert e.original.notes[-1].startswith("clients run one by one, since torch.vmap cannot run this problem (vmap")
    steps(e, 1)
    with pytest.raises(UserError, match=r"hardware.engine=vectorised: .*hardware.engine=one_by_one"):
        small("fedavg", "classification", "problem.model=support.networks.Branch", "hardware.engine=vectorised")


# What is no network here

REFUSED = [
    ({"_target_": "support.networks.Running"}, "2.running_mean changes .*GroupNorm"),
    ("support.networks.BySize", "depend.*batch"),
    ("support.networks.Counting", "logits when.*called again"),
    ("support.networks.Remembering", "logits when.*called again"),
    ("support.networks.Annealed", "logits when.*called again"),
    ("support.networks.Rounded", "hidden.weight changes"),
    ("support.networks.Ungraded", "no gradient reaches its parameters"),
    ("support.networks.Hooked", "cannot be copied; .*parametrizations"),
    ({"_target_": "support.networks.Running", "track": False}, "depend.*batch.*GroupNorm"),
    ({"_target_": "support.networks.Noisy"}, "uses the random numbers .*nn.Dropout"),
    ({"_target_": "support.networks.Attention", "dropout": 0.5}, "uses the random numbers .*dropout=0 in attention"),
    ({"_target_": "support.networks.AlwaysDropped"}, "uses the random numbers .*self.training"),
    ({"_target_": "support.networks.InPlace"}, "changes its arguments in place"),
    ({"_target_": "support.networks.FiveClasses"}, r"\[2, 5\].*10 classes, \[2, 10\]"),
    ({"_target_": "support.networks.Two"}, "tuple"),
    ({"_target_": "support.networks.Nothing"}, "parameters"),
    ({"_target_": "support.networks.Complex"}, "none that are complex"),
    ({"_target_": "support.networks.Lazy"}, "uninitialized parameter"),
    ({"_target_": "support.networks.Fails"}, "KeyError: 'no such thing'"),
    ({"_target_": "support.networks.Words"}, "on a batch .2, 1, 8, 8.: "),
    ({"_target_": "support.networks.Normed", "wdith": 3}, "unexpected keyword argument 'wdith'"),
    ({"_target_": "support.networks.of_another_kind"}, r"int.*torch\.nn\.Module"),
    ("support.networks.unannotated", r"torch\.nn\.Module"),
    ("support.networks.NOT_A_NETWORK", r"torch\.nn\.Module"),
    ("support.networks.Nobody", "cannot be imported"),
    ("no_such_package.Net", "cannot be imported"),
    ("os.system", r"torch\.nn\.Module"),
    ("builtins.dict", r"torch\.nn\.Module"),
    ({"width": 3}, "problem.model._target_: is missing"),
    ({"_target_": 3}, "problem.model=3 cannot be imported"),
]


@pytest.mark.parametrize(("named", "message"), REFUSED)
def test_refused_networks(named, message):
    with pytest.raises(UserError, match=message) as caught:
        modules.build(named, some(IMAGES)[:2], IMAGES, 10, seed=0)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("problem.model")


REMARKS = {
    "Probabilities": "the model's outputs look like probabilities, and the loss needs logits; remove the final softmax",
    "Unused": "no gradient reaches head.weight, head.bias, so this is not trained",
    "ByTuple": "no gradient reaches hidden.weight, hidden.bias, norm.weight, norm.bias, so this is not trained",
    **dict.fromkeys(("Normed", "Frozen", "LowRank", "Bound", "Tripled", "Routed"), ""),
}


@pytest.mark.parametrize(("name", "remark"), REMARKS.items())
def test_remarks(name, remark):
    """What is not trained is named, and nothing that is frozen, that only begins at zero, or whose units are dead at first."""
    assert own(name, some(IMAGES, 8).flatten(0, 1)).remark == remark


def test_remarks_are_notes_of_the_problem():
    problem = small("fedavg", "classification", "problem.model=support.networks.Unused").problem
    assert problem.notes == [REMARKS["Unused"]]


@pytest.mark.parametrize("name", ["Tripled", "Bound"])
@pytest.mark.parametrize("engine", [Vectorised(), OneByOne()])
def test_training_is_in_training_mode(name, engine):
    """One client's steps of SGD are those of plain PyTorch, evaluated in evaluation mode."""
    words = f"problem.model=support.networks.{name}", "algo.B=null", "algo.tau=3", "participation.cohort=null"
    e = small("fedavg", "classification", *words)
    e.federation.engine, problem = engine, e.problem
    state = steps(e, 1)[-1]
    wanted = torch.zeros_like(state.x)
    for i, rows in enumerate(problem.splits["train"]):
        module = problem.net.trained(problem.start()[0]).train()
        optimiser = torch.optim.SGD(module.parameters(), lr=float(e.algorithm.eta(0)))
        for _ in range(3):
            optimiser.zero_grad()
            x, y = problem.train.x[rows], problem.train.y[rows]
            nn.functional.cross_entropy(module(x.view(-1, *problem.train.shape)), y).backward()
            optimiser.step()
        wanted += problem.weights[i] * nn.utils.parameters_to_vector(module.parameters()).detach()
    torch.testing.assert_close(state.x, wanted)
    plain = problem.net.trained(state.x).eval()
    test = problem.test_examples
    accuracy = (plain(test.x.view(-1, *test.shape)).argmax(1) == test.y).double().mean()
    assert problem.evaluate(state.x)["test_accuracy"] == pytest.approx(100 * float(accuracy))


def test_a_problem_that_forgets_the_mode(monkeypatch):
    words = "fedavg", "classification", "problem.model=support.networks.Dropped"
    forgets = lambda self, x, sample: cross_entropy(self.net(x, sample["train"].x), sample["train"])  # noqa: E731
    monkeypatch.setattr(type(small(*words).original), "f", forgets)
    with pytest.raises(UserError, match=r"calls.*network without \*batch\.keys, which turns off dropout"):
        small(*words)
    small(*words[:2], "problem.model=support.networks.Normed")


def test_a_network_whose_last_layer_nobody_can_split_off():
    with pytest.raises(UserError, match=r"nn.Sequential of two or more layers that ends with nn.Linear"):
        small("fednest", "hyper_representation", "problem.model=support.networks.Normed")


@pytest.mark.parametrize("name", ["linear", "softmax", "mlp"])
@pytest.mark.parametrize("shared", ["nothing", "examples", "parameters", "tuning"])
def test_gradients_under_two_vmaps(name, shared):
    """As where several configurations are computed for several clients: each argument may be of one level, of both or of none."""
    model, generator = models.build(name, [5], (7,), 4, seed=0), torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def loss(flat, x, y, weight, scale, shift):
        return torch.nn.functional.cross_entropy(model(flat, x) * scale + shift, y, reduction="none") @ weight

    y = torch.randint(4, (3, 6), generator=generator)
    arguments = [normal(2, 3, model.dim), normal(3, 6, 7), y, normal(2, 3, 6).abs(), normal(2, 4), normal(2, 4)]
    configurations, clients = [0, None, None, 0, 0, 0], [0, 0, 0, 0, None, None]
    for place in {"nothing": [], "examples": [3], "parameters": [0], "tuning": [4, 5]}[shared]:
        arguments[place] = arguments[place][0]
        configurations[place] = None

    def gradient(flat, x, y, weight, scale, shift):
        return model.gradient(flat, batch_of(x, y, weight), (scale, shift))

    found, expected = (
        torch.func.vmap(torch.func.vmap(of, tuple(clients)), tuple(configurations))(*arguments)
        for of in (gradient, torch.func.grad(loss))
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
