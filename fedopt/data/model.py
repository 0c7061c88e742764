"""Trained models that predict from raw examples, and their files: JSON for linear models, safetensors for all networks."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from pydantic import ConfigDict, FiniteFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fedopt.config import with_project
from fedopt.data.examples import tuned
from fedopt.data.names import spelt
from fedopt.errors import UserError, first_line, nearest, some
from fedopt.files import BROKEN, read_bytes, write_atomically
from fedopt.machine import memory
from fedopt.networks import Normalised, Tuning, flat, own

FORMAT = "fedopt model 1"
LINEAR = ("linear", "softmax")  # the networks that are one matrix, and perhaps an intercept
NUMBERS = {"means": "mean", "deviations": "std", "coefficients": "network.1.0.weight", "intercept": "network.1.0.bias"}
NUMBERS |= {"scale": "scale", "shift": "shift"}  # in JSON: the tensor of a linear model
AT_ONCE = 2048  # examples, which bounds memory
SHOWN = 4  # columns in a message


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Card:
    """What a model's file says besides its numbers.

    kind: what it predicts. features: the names of a table's columns, in order; empty without names. classes: their names or
    numbers, in the order of the outputs; empty for a regression. shape: of an example. network: problem.model and further values
    that build it. fill: what stands for missing values of the features; None: none may be missing. client: whose it is; None:
    nobody's in particular. own: whether this client alone has it. run: facts about the run that trained it.
    """

    kind: Literal["classification", "regression"]
    features: list[str]
    classes: list[int] | list[str]
    shape: list[PositiveInt]
    network: dict[str, Any]
    fill: list[FiniteFloat] | None = None
    client: str | None = None
    own: bool = False
    run: dict[str, Any] | None = None


class Model(Normalised):
    """A trained model for raw examples, on the CPU and in evaluation mode.

    It is a `torch.nn.Module` that takes examples in the data set's units, such as images as bytes from 0 to 255, and
    normalises them itself. `predict` and `predict_proba` also take data frames and NumPy arrays.

    Attributes:
        card: What its file says besides the numbers, such as ``card.features``.
        classes_: The classes in the order of `predict_proba`: whole numbers if all their names are, else texts.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        normalisation: tuple[np.ndarray, np.ndarray] | None,
        card: Card,
        tuning: Tuning = None,
        fills: Mapping[str, np.ndarray] | None = None,
    ):
        """Wrap a trained network.

        Args:
            network: It takes normalised examples.
            normalisation: As in `Normalised`.
            card: What its file says besides the numbers.
            tuning: The scale and the shift of the logits that make probabilities, ``[classes]`` each. None: no change.
            fills: What stands for missing values, ``[features]`` by the client's name, '' for other clients. None: nothing.
        """
        super().__init__(network, normalisation, card.shape)
        self.fills, self.classes_ = fills or {}, np.array(card.classes)
        self.card = replace(card, fill=self._fill("")) if fills else card
        for name, value in zip(("scale", "shift"), tuning or (None, None), strict=True):
            self.register_buffer(name, value)

    def predict(self, examples: Any) -> np.ndarray:
        """Return the class of each example, or the number that a regression predicts.

        Args:
            examples: A pandas data frame with the features by name, in any order; further columns are ignored. Or an array as
                in the data set: ``[n, features]``, or images ``[n, channels, height, width]``.

        Returns:
            ``[n]``, classes as in ``classes_``.

        Raises:
            UserError: A feature is not there, or a cell is no number. Missing cells are filled in as in training
                (dataset.missing), and refused if training had none.

        Example:
            ``run.model(client="Aue").predict(pd.read_csv("new.csv"))``
        """
        outputs = self._outputs(examples)
        if self.card.kind == "regression":
            return outputs[:, 0].double().numpy()
        return self.classes_[outputs.argmax(1).numpy()]

    def predict_proba(self, examples: Any) -> np.ndarray:
        """Return the probabilities of the classes, ``[n, classes]``, with columns in the order of ``classes_``.

        Loss tuning calibrates them. Its `predict` takes the largest output before that.

        Args:
            examples: As in `predict`.

        Raises:
            UserError: As in `predict`; or the model is a regression.
        """
        if self.card.kind == "regression":
            raise UserError("a regression has no classes, and no probabilities; use predict")
        tuning = None if self.scale is None or self.shift is None else (self.scale, self.shift)
        return torch.softmax(tuned(self._outputs(examples), tuning).double(), 1).numpy()

    def save(self, path: str | Path) -> None:
        """Write the model to a file, which `load_model` reads.

        Args:
            path: NAME.json for a linear model, which other programs can read too; NAME.safetensors for any model.

        Raises:
            UserError: The path ends otherwise, or the network is not linear and the path ends in .json.
            OSError: The file cannot be written.
        """
        file, card = Path(path), self.card
        if file.suffix not in (".json", ".safetensors"):
            raise UserError(f"{file}: must end in .json or .safetensors")
        if file.suffix == ".safetensors":
            tensors = {
                name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in self.state_dict().items()
            }
            record = json.dumps({"format": FORMAT, **asdict(card)})
            return write_atomically(file, safetensors.torch.save(tensors, {"fedopt": record}))
        if not self.linear:
            raise UserError(f"{file}: this network is not linear; write it to a file that ends in .safetensors")
        tensors = {key: tensor.double() for key, tensor in self.state_dict().items()}
        tensors.setdefault(NUMBERS["intercept"], torch.zeros(len(tensors[NUMBERS["coefficients"]])))
        tensors |= {name: tensors[name].flatten() for name in ("mean", "std")}
        numbers = {name: tensors[key].tolist() if key in tensors else None for name, key in NUMBERS.items()}
        entries = {"format": FORMAT, **asdict(card), "network": {"model": "linear", "widths": []}, **numbers}
        return write_atomically(file, (json.dumps(entries, indent=1, allow_nan=False) + "\n").encode())

    @property
    def linear(self) -> bool:
        """Whether its outputs are linear in the examples."""
        return self.card.network["model"] in LINEAR

    def of(self, client: str, parameters: Tensor | None) -> "Model":
        """Return a client's copy of the model.

        Args:
            client: The client's name.
            parameters: The parameters of its own model, ``[dim]``. None: it has none, and takes the common model.
        """
        model = deepcopy(self)
        if parameters is not None:
            trained = (p for p in model.network.parameters() if p.requires_grad)
            vector_to_parameters(parameters.clone(), trained)
        model.card = replace(self.card, client=client, own=parameters is not None, fill=self._fill(client))
        return model

    def _fill(self, client: str) -> list[float] | None:
        fill = self.fills.get(client, self.fills.get(""))
        return None if fill is None else [*map(float, fill)]

    def _outputs(self, examples: Any) -> Tensor:
        """Return the network's outputs, [n, classes]. examples: as in `predict`."""
        x = torch.as_tensor(self._numbers(examples))
        with torch.no_grad():
            return torch.cat([self(part) for part in x.split(AT_ONCE)])

    def _numbers(self, examples: Any) -> np.ndarray:
        """Return the examples as an array, with missing values filled in. Raises UserError for other cells than numbers."""
        names = self.card.features
        by_name = names and hasattr(examples, "columns")
        x = _of_frame(examples, names) if by_name else np.asarray(examples)
        if self.mean is None:
            return x  # token ids
        x = x.astype(np.float64, copy=False)
        if self.card.fill is not None:
            x = np.where(np.isnan(x), self.card.fill, x)
        if (wrong := ~np.isfinite(x)).any():
            columns = np.flatnonzero(wrong.any(axis=0).reshape(-1)).tolist()
            which = some((names[c] if names else c for c in columns), SHOWN)
            raise UserError(
                f"column {which}: has cells that are empty or no finite numbers; fill them in, or leave out these rows"
            )
        return x


def _of_frame(frame: Any, names: list[str]) -> np.ndarray:
    """Return the columns of a data frame as numbers, [n, features]; infinity for texts, nan for missing cells."""
    import pandas as pd  # not at the top: it takes half a second

    renamed = frame.rename(columns=lambda column: spelt(str(column)))
    there = renamed.columns.tolist()
    if lacking := [name for name in names if there.count(name) != 1]:
        found = "is in the table twice" if lacking[0] in there else f"is not in the table{nearest(lacking[0], there)}"
        others = f" (and {some(lacking[1:], SHOWN)})" if lacking[1:] else ""
        raise UserError(f"column {lacking[0]}{others}: {found}; give each feature once: {some(names, 12)}")
    cells = renamed[names]
    numbers = cells.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.where(np.isnan(numbers) & cells.notna().to_numpy(), np.inf, numbers)


def load_model(path: str | Path) -> Model:
    """Return a model that ``fedopt export`` or ``Model.save`` has written.

    The file is read safely: it holds numbers and texts, and no code. A network of your own must be importable.

    Args:
        path: A file that ends in .json or .safetensors.

    Raises:
        UserError: The file is missing, or is no such model; one line.

    Example:
        ``fedopt.load_model("aue.json").predict(pd.read_csv("new.csv"))``
    """
    try:
        content = read_bytes(Path(path), memory() // 3, links=True)
        record, tensors = (_of_json if Path(path).suffix == ".json" else _of_safetensors)(content)
        if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
            raise ValueError(f"it does not say {FORMAT}")
        return _built(TypeAdapter(Card).validate_json(json.dumps(record)), tensors)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; `fedopt export RUN` writes one") from None
    except (*BROKEN, SafetensorError, RuntimeError, MemoryError) as error:
        first = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        why = (
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            if first
            else first_line(error).removeprefix(f"{path}: ")
        )
        raise UserError(
            f"{path}: is no model that can be read ({why}); write it again with `fedopt export RUN`"
        ) from None


def _of_json(content: bytes) -> tuple[Any, dict[str, Tensor]]:
    """Return the entries of a card and the tensors of a linear model. Raises one of `BROKEN` for a broken file."""
    record = json.loads(content)
    lists = {name: record.pop(name) for name in NUMBERS}
    tensors = {
        NUMBERS[name]: torch.tensor(list_, dtype=torch.float64) for name, list_ in lists.items() if list_ is not None
    }
    shape = record["shape"]
    for name in ("mean", "std"):
        tensors[name] = tensors[name].view(shape) if tensors[name].numel() == np.prod(shape) else tensors[name]
    return record, tensors


def _of_safetensors(content: bytes) -> tuple[Any, dict[str, Tensor]]:
    """Return what `_of_json` does. Raises one of `BROKEN`, or SafetensorError."""
    tensors = safetensors.torch.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["fedopt"]), tensors


def _built(card: Card, tensors: dict[str, Tensor]) -> Model:
    """Return the model of a card with these tensors.

    Raises ValueError if their names, shapes or numbers do not fit. Memory is taken for the tensors alone.
    """
    outputs = len(card.classes) if card.kind == "classification" else 1
    model = Model(_network(card, outputs), None, card)
    for names, shape in ((("mean", "std"), card.shape), (("scale", "shift"), [outputs])):
        if {*names} & {*tensors}:
            for name in names:
                setattr(model, name, torch.empty(shape, device="meta"))
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if wrong := [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]:
        raise ValueError(f"{wrong[0]} is {found.get(wrong[0], 'absent')}, not {wanted.get(wrong[0], 'absent')}")
    for name, length in (("features", len(card.features)), ("fill", len(card.fill or ()))):
        if length not in (0, *card.shape[:1]):
            raise ValueError(f"{name} has {length} entries, not {card.shape[0]}")
    if odd := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{odd[0]} has numbers that are not finite")
    if "std" in tensors and not (tensors["std"] > 0).all():
        raise ValueError("deviations must be larger than 0")
    model.load_state_dict(tensors, assign=True)
    return model


def _network(card: Card, outputs: int) -> nn.Module:
    """Return the untrained network of a card, without memory unless it is a network of yours."""
    model, widths = card.network["model"], card.network.get("widths", [])
    if isinstance(model, dict) or "." in model:
        with_project()
        return own.maker(model, 0)[0]()
    with torch.device("meta"):
        net = flat.build(model, widths, card.shape, outputs, 0, dropout=card.network.get("dropout", 0.0))
        return net.trained(net.initial)
