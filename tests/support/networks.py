"""Networks such as users write, for images of 8 x 8 pixels or for token ids, with 10 classes: good ones, and refused ones."""

from typing import Literal
from warnings import catch_warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Normed(nn.Module):
    def __init__(self, width: int = 6, activation: Literal["relu", "tanh"] = "tanh"):
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(64, width), nn.LayerNorm(width), nn.Linear(width, 10)
        self.activation = getattr(torch, activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.activation(self.norm(self.hidden(x.flatten(1)))))


class Probabilities(Normed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.softplus(self.norm(self.first(x))).mean((2, 3)))


class Attention(nn.Module):
    """Of the rows of an image, with a constant for each place."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout, F.gelu, batch_first=True)
        self.out = nn.Linear(8, 10)
        self.register_buffer("place", torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(x[:, 0] + self.get_buffer("place")).mean(1))


class Words(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(30, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 10)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.lstm(self.words(x))[0][:, -1]))


class Dropped(Normed):
    def __init__(self, p: float = 0.3):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout2d(x, self.p, self.training)
        return self.out(F.dropout(torch.tanh(self.hidden(x.flatten(1))), self.p, self.training))


def layers(width: int = 6, p: float = 0.2) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Dropout(p), nn.Linear(width, 10))


class Frozen(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)


class Branch(Normed):
    """Each example by itself, in a way that vmap has no rule for."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(
            [(1.0 if float(row.detach().sum()) > 0 else 0.5) * super(Branch, self).forward(row) for row in x.split(1)]
        )[:, 0]


class Bound(Normed):
    """Calls a layer by a function that is bound to this module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = lambda x: self.hidden(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.first(x.flatten(1))))


class Tripled(Normed):
    """Another function in training, without dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(3 * x if self.training else x)


class Routed(Normed):
    """Each example has one of two layers in front."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(64, 2), nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x := x.flatten(1)).softmax(1)
        chosen = [share.max() * self.experts[int(share.argmax())](row) for row, share in zip(x, shares, strict=True)]
        return super().forward(torch.stack(chosen))


class LowRank(Normed):
    """A change of a frozen layer that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(64, 2)), nn.Parameter(torch.zeros(2, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.out(self.norm(torch.relu(self.hidden(x) - 100.0) + x @ self.A @ self.B))


class Unused(Normed):
    """With a head that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)


# Refused


class ByTuple(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.weights = self.hidden.weight, self.hidden.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.linear(x.flatten(1), *self.weights))


class Rounded(Normed):
    def forward(self, x: Tensor) -> Tensor:
        numbers = self.hidden.weight.data.numpy()
        numbers[:] = numbers.round(2)
        return super().forward(x)


class Annealed(Normed):
    """Counts its calls in training alone, and changes by little."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x) * (1 + 1e-5 * self.calls)


class Doubling(Normed):
    def __init__(self) -> None:
        torch.set_default_dtype(torch.float64)
        super().__init__()


class Ungraded(Normed):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class Running(nn.Sequential):
    def __init__(self, track: bool = True):
        super().__init__(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6, track_running_stats=track), nn.Linear(6, 10))


class Noisy(Normed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class AlwaysDropped(Normed):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5)


class InPlace(Normed):
    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        return super().forward(x)


class FiveClasses(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 5))


class Nothing(nn.Flatten):
    pass


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(64, 10, dtype=torch.complex64))


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(10))


class Two(Normed):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Fails(nn.Module):
    def __init__(self) -> None:
        raise KeyError("no such thing")


def unannotated(width: int = 3):  # type: ignore[no-untyped-def]
    return layers(width)


def of_another_kind() -> nn.Module:
    return 3  # type: ignore[return-value]


NOT_A_NETWORK = 3


class BySize(Normed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / len(x)


class Counting(Normed):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Remembering(Normed):
    average: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.average = 0.9 * self.average + 0.1 * x.mean().detach()
        return super().forward(x) - self.average


class Hooked(Normed):
    def __init__(self) -> None:
        super().__init__()
        with catch_warnings(action="ignore"):
            self.out = nn.utils.weight_norm(self.out)
