"""Trained models that predict from raw examples, and their files: JSON for linear models, safetensors for all networks."""

import json
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
from fedopt.errors import UserError, nearest, some
from fedopt.files import BROKEN, LARGEST_JSON, read_bytes, write_atomically
from fedopt.machine import memory
from fedopt.networks import Normalised, Tuning, flat, own

FORMAT = "fedopt model 1"
LINEAR = ("linear", "softmax")  # the networks that are one matrix, and perhaps an intercept
NUMBERS = {"means": "mean", "deviations": "std", "coefficients": "network.1.0.weight", "intercept": "network.1.0.bias"}
NUMBERS |= {"scale": "scale", "shift": "shift"}  # in JSON: the tensor of a linear model
AT_ONCE = 2048  # examples, which bounds memory
SHOWN, MOST_SHOWN = 4, 300  # columns, and letters of an error, in a message


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

    def __init__(self, network: nn.Module, normalisation: Any, card: Card, tuning: Tuning = None, fills: Any = None):
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
        self.register_buffer("scale", tuning and tuning[0])
        self.register_buffer("shift", tuning and tuning[1])

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
        if not self.card.classes:
            return outputs[:, 0].double().numpy()
        return self.classes_[outputs.argmax(1).numpy()]

    def predict_proba(self, examples: Any) -> np.ndarray:
        """Return the probabilities of the classes, ``[n, classes]``, with columns in the order of ``classes_``.

        Of a tuned loss they are calibrated, and `predict` takes the largest output before that.

        Args:
            examples: As in `predict`.

        Raises:
            UserError: As in `predict`; or the model is a regression.
        """
        if not self.card.classes:
            raise UserError("a regression has no classes, and no probabilities; use predict")
        outputs = self._outputs(examples)
        if self.scale is not None and self.shift is not None:
            outputs = tuned(outputs, (self.scale, self.shift))
        return torch.softmax(outputs.double(), 1).numpy()

    def save(self, path: str | Path) -> None:
        """Write the model to a file, which `load_model` reads.

        Args:
            path: NAME.json for a linear model, which other programs can read too; NAME.safetensors for any model.

        Raises:
            UserError: The path ends otherwise, or the network is not linear and the path ends in .json.
            OSError: The file cannot be written.
        """
        file, entries = Path(path), {"format": FORMAT, **asdict(self.card)}
        if file.suffix not in (forms := (".json", ".safetensors")[not self.linear :]):
            raise UserError(f"{file}: must end in {' or '.join(forms)}; only linear models are written as .json")
        tensors = {key: tensor.clone().contiguous() for key, tensor in self.state_dict().items()}
        if file.suffix == ".safetensors":
            return write_atomically(file, safetensors.torch.save(tensors, {"fedopt": json.dumps(entries)}))
        coefficients = tensors[NUMBERS["coefficients"]]
        tensors.setdefault(NUMBERS["intercept"], coefficients.new_zeros(len(coefficients)))
        tensors |= {name: tensors[name].flatten() for name in ("mean", "std")}
        numbers = {name: tensors[key].double().tolist() for name, key in NUMBERS.items() if key in tensors}
        entries |= {"network": {"model": "linear"}, **numbers}
        return write_atomically(file, (json.dumps(entries, indent=1) + "\n").encode())

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
        x = torch.tensor(self._numbers(examples))
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
                f"column {which}: has cells that are empty or no finite numbers; fill them in, or drop the rows"
            )
        return x


def _of_frame(frame: Any, names: list[str]) -> np.ndarray:
    """Return the columns of a data frame as numbers, [n, features]; infinity for texts, nan for missing cells."""
    import pandas as pd  # not at the top: it takes half a second

    frame = frame.rename(columns=lambda column: spelt(str(column)))
    there = frame.columns.tolist()
    if lacking := [name for name in names if there.count(name) != 1]:
        near = nearest(lacking[0], there)
        raise UserError(f"column {some(lacking, SHOWN)}: must be in the table once{near}; name it as in training")
    numbers = frame[names].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.where(np.isnan(numbers) & frame[names].notna(), np.inf, numbers)


def load_model(path: str | Path) -> Model:
    """Return a model that ``fedopt export`` or ``Model.save`` has written.

    The file is read safely: it holds numbers and texts, and no code. A network of your own must be importable.

    Args:
        path: A file that ends in .json or .safetensors.

    Raises:
        UserError: The file is missing, or is no such model; one line.

    Example:
        >>> command = "algo=fedavg problem=classification dataset=digits budget.rounds=1"
        >>> run = fedopt.run(command, output_dir="digits", quiet=True)
        >>> run.model().save("model.safetensors")
        >>> fedopt.load_model("model.safetensors").predict(torch.zeros(1, 64).numpy()).shape
        (1,)
    """
    file = Path(path)
    try:
        in_json = file.suffix == ".json"
        content = read_bytes(file, LARGEST_JSON if in_json else memory() // 3, links=True)
        entries, tensors = _of_json(content) if in_json else _of_safetensors(content)
        if entries.pop("format", None) != FORMAT:
            raise ValueError(f"it does not say {FORMAT}")
        return _built(TypeAdapter(Card).validate_json(json.dumps(entries)), tensors)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; `fedopt export RUN` writes one") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (*BROKEN, AttributeError, SafetensorError, RuntimeError, MemoryError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error).removeprefix(f"{path}: ")
        why = " ".join(said.split())[:MOST_SHOWN]  # torch has several lines
    raise UserError(f"{path}: is no model that can be read ({why}); write it again with `fedopt export RUN`")


def _of_json(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the entries of a card and the tensors of a linear model. Raises one of `BROKEN` for a broken file."""
    entries = json.loads(content)
    lists = {key: entries.pop(name) for name, key in NUMBERS.items() if name in entries}
    numbers = {key: torch.tensor(list_, dtype=torch.float64) for key, list_ in lists.items()}
    numbers |= {name: numbers[name].view(entries["shape"]) for name in ("mean", "std")}
    return entries, numbers


def _of_safetensors(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what `_of_json` does. Raises one of `BROKEN`, or SafetensorError."""
    tensors = safetensors.torch.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["fedopt"]), tensors


def _built(card: Card, tensors: dict[str, Tensor]) -> Model:
    """Return the model of a card with these tensors.

    Raises ValueError or RuntimeError if their names, shapes or numbers do not fit. Memory is taken for the tensors alone.
    """
    outputs = len(card.classes) or 1
    model = Model(_network(card, outputs), None, card)
    for pair, shape in ((("mean", "std"), card.shape), (("scale", "shift"), [outputs])):
        for name in pair if {*pair} & {*tensors} else ():
            setattr(model, name, torch.empty(shape, device="meta"))
    model.load_state_dict(tensors, assign=True)
    if any(values and len(values) != card.shape[0] for values in (card.features, card.fill)):
        raise ValueError("its features do not fit the shape of an example")
    if not all(tensor.isfinite().all() for tensor in tensors.values()) or (
        "std" in tensors and tensors["std"].min() <= 0
    ):
        raise ValueError("it has numbers that are not finite, or deviations that are not positive")
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
