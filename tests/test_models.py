"""Networks of one flat vector against torch.nn.Sequential with the same parameters."""

import itertools
import math

import pytest
import torch
from torch import nn

from fedopt import models
from fedopt.errors import UserError

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
        ("cnn", (1, 3, 8), "4 x 4 pixels or more, not 3 x 8"),
        ("vgg11", (3, 28, 28), "32 x 32 pixels or more, not 28 x 28"),
        ("vgg11", (1, 32, 32), "3 channels, not 1"),
        ("resnet", (3, 32, 32), " is not known; .*mlp"),
    ],
)
def test_unfit_images_and_names(name, shape, message):
    with pytest.raises(UserError, match=rf"problem\.model={name}.*{message}"):
        models.build(name, [], shape, 10, seed=0)


@pytest.mark.parametrize(("name", "widths"), [("linear", []), ("softmax", []), ("mlp", [5]), ("mlp", [6, 4, 5])])
def test_gradient_written_out(name, widths):
    """Backpropagation by hand = autograd, alone and in a stack, with uneven and zero weights."""
    model = models.build(name, widths, (1, 3, 4), 7, seed=0)
    generator = torch.Generator().manual_seed(1)
    flat = model.initial.double() + 0.3 * torch.randn(2, model.dim, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 6, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(7, (2, 6), generator=generator)
    weight = torch.tensor([[0.5, 0.1, 0.2, 0.2, 0, 0], [0.3, 0.3, 0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)

    def loss(flat, x, y, weight):
        return torch.nn.functional.cross_entropy(model(flat, x), y, reduction="none") @ weight

    expected = torch.stack([torch.func.grad(loss)(*of) for of in zip(flat, x, y, weight, strict=True)])
    alone = [model.gradient(*of) for of in zip(flat, x, y, weight, strict=True)]
    torch.testing.assert_close(torch.stack(alone), expected)
    torch.testing.assert_close(torch.func.vmap(model.gradient)(flat, x, y, weight), expected)
    points = torch.stack([model.gradient(point, x[0], y[0], weight[0]) for point in flat])
    torch.testing.assert_close(model.gradient(flat, x[0], y[0], weight[0]), points)


@pytest.mark.parametrize("small", [0, models.SMALL])  # products by the operator, and formed
@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(("name", "widths"), [("linear", []), ("softmax", []), ("mlp", [5]), ("mlp", [6, 4])])
def test_gradient_steps_in_place(name, widths, tuned, small, monkeypatch):
    """Three steps = x - eta (autograd's gradient + plus), alone and in a stack, written over x and over nothing else."""
    monkeypatch.setattr(models, "SMALL", small)
    model, eta = models.build(name, widths, (1, 3, 4), 7, seed=0), 0.3
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    flat, plus, x = model.initial.double() + 0.3 * normal(2, model.dim), normal(2, model.dim), normal(2, 6, 12)
    y, weight = torch.randint(7, (2, 6), generator=generator), normal(2, 6).abs()
    tuning = (normal(7), normal(7)) if tuned else None
    untouched = [x, y, weight, plus, *(tuning or ())]
    before = [t.clone() for t in untouched]

    def loss(flat, x, y, weight):
        logits = model(flat, x) * tuning[0] + tuning[1] if tuned else model(flat, x)
        return torch.nn.functional.cross_entropy(logits, y, reduction="none") @ weight

    def three_steps(flat, plus, *batch):
        for correction in (None, plus, plus):
            flat = model.descend(flat, *batch, eta, correction, tuning)
        return flat

    expected = []
    for at, correction, *batch in zip(flat, plus, x, y, weight, strict=True):
        at = at - eta * torch.func.grad(loss)(at, *batch)
        for _ in range(2):
            at = at - eta * (torch.func.grad(loss)(at, *batch) + correction)
        expected.append(at)
    alone, stacked = flat.clone(), flat.clone()
    for at, *of in zip(alone, plus, x, y, weight, strict=True):
        assert three_steps(at, *of) is at
    stepped = torch.func.vmap(three_steps)(stacked, plus, x, y, weight)
    for result in (alone, stacked, stepped):
        torch.testing.assert_close(result, torch.stack(expected), rtol=1e-12, atol=1e-13)
    assert all(torch.equal(a, b) for a, b in zip(untouched, before, strict=True))


@pytest.mark.parametrize(("name", "autocast"), [("cnn", None), ("mlp", torch.bfloat16)])
def test_gradients_that_are_not_written_out(name, autocast):
    model = models.build(name, [5], (1, 4, 4), 3, seed=0, autocast=autocast)
    batch = torch.randn(2, 16), torch.tensor([0, 2]), torch.full((2,), 0.5)
    assert model.gradient(model.initial, *batch) is None
    assert model.descend(model.initial, *batch, 0.1, None) is None
