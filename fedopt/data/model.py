"""Trained models that predict from raw examples, and their files.

Linear models can be saved as JSON, all models as safetensors.
"""

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
from fedopt.data.names import clean_name
from fedopt.errors import UserError, joined, nearest
from fedopt.files import BROKEN, LARGEST_JSON, read_bytes, write_atomically
from fedopt.machine import memory
from fedopt.networks import Normalised, Tuning, custom, flat

FORMAT = "fedopt model 1"
LINEAR = ("linear", "softmax")  # networks that consist of one linear layer
NUMBERS = {"means": "mean", "deviations": "std", "coefficients": "network.1.0.weight", "intercept": "network.1.0.bias"}
NUMBERS |= {"scale": "scale", "shift": "shift"}  # name in the JSON file: tensor of the model
AT_ONCE = 2048  # examples that are predicted together; bounds memory
SHOWN, MOST_SHOWN = 4, 300  # columns and characters of an error that are shown in a message


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Card:
    """The metadata of a trained model, stored in its file next to the parameters.

    Attributes:
        kind: The task, ``classification`` or ``regression``.
        features: Column names of the table, in order; empty if they have no names.
        classes: Names or numbers of the classes, in the order of the outputs; empty for a regression.
        shape: Shape of an example.
        network: How to build the network: ``problem.model`` and its options.
        fill: Values that replace missing features, ``[features]``. None: values must not be missing.
        client: Name of the client that the model is for. None: it is for no particular client.
        own: Whether the model was trained for this client alone.
        run: Facts about the run that trained the model.
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

    It is a `torch.nn.Module` that takes examples in the units of the data set, such as images with pixels from 0 to 255, and
    normalises them itself. `predict` and `predict_proba` also accept data frames and NumPy arrays.

    Attributes:
        card: Metadata of the model, such as ``card.features``.
        classes_: The classes in the order of the columns of `predict_proba`: integers if all class names are integers,
            otherwise texts.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, network: nn.Module, normalisation: Any, card: Card, tuning: Tuning = None, fills: Any = None):
        """Wrap a trained network.

        Args:
            network: The network, which takes normalised examples.
            normalisation: Shift and scale of the inputs, ``[channels]`` or ``[features]`` each. None: the inputs are token ids.
            card: Metadata of the model.
            tuning: Scale and shift of the logits, ``[classes]`` each, that turn them into calibrated probabilities. None: the
                logits are used as they are.
            fills: Values that replace missing features, ``[features]`` for each client name; the key ``""`` is for other
                clients. None: values must not be missing.
        """
        super().__init__(network, normalisation, card.shape)
        self.fills, self.classes_ = fills or {}, np.array(card.classes)
        self.card = replace(card, fill=self._fill("")) if fills else card
        self.register_buffer("scale", tuning and tuning[0])
        self.register_buffer("shift", tuning and tuning[1])

    def predict(self, examples: Any) -> np.ndarray:
        """Predict the class of each example, or the target of a regression.

        Args:
            examples: A pandas data frame that contains the features by name, in any order (other columns are ignored); or an
                array in the layout of the data set: ``[n, features]``, or images ``[n, channels, height, width]``.

        Returns:
            The predictions, ``[n]``; classes are values of ``classes_``.

        Raises:
            UserError: A feature is missing from the data frame, a cell is not a number, or a cell is empty and the model was
                trained without missing values. Otherwise empty cells are filled in as in training (``dataset.missing``).

        Example:
            ``run.model(client="Aue").predict(pd.read_csv("new.csv"))``
        """
        outputs = self._outputs(examples)
        if not self.card.classes:
            return outputs[:, 0].double().numpy()
        return self.classes_[outputs.argmax(1).numpy()]

    def predict_proba(self, examples: Any) -> np.ndarray:
        """Predict the probabilities of the classes.

        If the loss was tuned, these are the calibrated probabilities. `predict` then takes the largest output before
        calibration, which can differ from the most probable class.

        Args:
            examples: A data frame or an array, as for `predict`.

        Returns:
            The probabilities, ``[n, classes]``, with columns in the order of ``classes_``.

        Raises:
            UserError: The examples are invalid (see `predict`), or the model is a regression.
        """
        if not self.card.classes:
            raise UserError("a regression model has no class probabilities; use predict")
        outputs = self._outputs(examples)
        if self.scale is not None and self.shift is not None:
            outputs = tuned(outputs, (self.scale, self.shift))
        return torch.softmax(outputs.double(), 1).numpy()

    def save(self, path: str | Path) -> None:
        """Write the model to a file that `load_model` can read.

        Args:
            path: ``NAME.json`` for a linear model, which other programs can read too; ``NAME.safetensors`` for any model.

        Raises:
            UserError: The path has another suffix, or it ends in .json and the model is not linear.
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
        """Whether the outputs are linear in the inputs."""
        return self.card.network["model"] in LINEAR

    def of(self, client: str, parameters: Tensor | None) -> "Model":
        """Return a copy of the model for one client.

        Args:
            client: The client's name. It selects the means that replace missing features.
            parameters: Parameters of the client's own model, ``[dim]``. None: the client uses the common model.
        """
        model = deepcopy(self)
        if parameters is not None:
            trained = (p for p in model.network.parameters() if p.requires_grad)
            vector_to_parameters(parameters.clone(), trained)
        model.card = replace(self.card, client=client, own=parameters is not None, fill=self._fill(client))
        return model

    def _fill(self, client: str) -> list[float] | None:
        """Return the values that replace missing features of the named client; None if values must not be missing."""
        fill = self.fills.get(client, self.fills.get(""))
        return None if fill is None else [*map(float, fill)]

    def _outputs(self, examples: Any) -> Tensor:
        """Return the outputs of the network, ``[n, outputs]``, for a data frame or an array of examples."""
        x = torch.tensor(self._numbers(examples))
        with torch.no_grad():
            return torch.cat([self(chunk) for chunk in x.split(AT_ONCE)])

    def _numbers(self, examples: Any) -> np.ndarray:
        """Convert examples to an array and fill in missing values.

        Args:
            examples: A data frame or an array of raw examples.

        Returns:
            The array, in the layout of the data set.

        Raises:
            UserError: A column is missing, or a cell is not a finite number.
        """
        names = self.card.features
        by_name = names and hasattr(examples, "columns")
        x = _of_frame(examples, names) if by_name else np.asarray(examples)
        if self.mean is None:
            return x  # the inputs are token ids
        x = x.astype(np.float64, copy=False)
        if self.card.fill is not None:
            x = np.where(np.isnan(x), self.card.fill, x)
        if (wrong := ~np.isfinite(x)).any():
            columns = np.flatnonzero(wrong.any(axis=0).reshape(-1)).tolist()
            which = joined((names[c] if names else c for c in columns), SHOWN)
            raise UserError(f"column {which}: has cells that are empty or not finite; fill them in, or drop the rows")
        return x


def _of_frame(frame: Any, names: list[str]) -> np.ndarray:
    """Return the named columns of a data frame as an array.

    Args:
        frame: The data frame. Its column names are normalised first.
        names: The columns to take, in this order.

    Returns:
        The values, ``[n, features]``: infinity for cells that are texts, nan for empty cells.

    Raises:
        UserError: A column is missing or occurs more than once.
    """
    import pandas as pd  # imported here because it takes half a second

    frame = frame.rename(columns=lambda column: clean_name(str(column)))
    present = frame.columns.tolist()
    if lacking := [name for name in names if present.count(name) != 1]:
        near = nearest(lacking[0], present)
        raise UserError(f"column {joined(lacking, SHOWN)}: must occur exactly once{near}; rename it as in training")
    numbers = frame[names].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.where(np.isnan(numbers) & frame[names].notna(), np.inf, numbers)


def load_model(path: str | Path) -> Model:
    """Load a model written by ``fedopt export`` or `Model.save`.

    Reading the file is safe: it contains numbers and texts but no code. A custom network must be importable.

    Args:
        path: A file that ends in .json or .safetensors.

    Returns:
        The model.

    Raises:
        UserError: The file is missing or does not contain a model.

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
            raise ValueError(f"its format is not {FORMAT}")
        return _built(TypeAdapter(Card).validate_json(json.dumps(entries)), tensors)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; `fedopt export RUN` writes one") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (*BROKEN, AttributeError, SafetensorError, RuntimeError, MemoryError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).removeprefix(f"{path}: ")
        why = " ".join(reason.split())[:MOST_SHOWN]  # torch's messages have several lines
    raise UserError(f"{path}: is not a model that fedopt can read ({why}); write it again with `fedopt export RUN`")


def _of_json(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Parse the JSON file of a linear model.

    Args:
        content: The bytes of the file.

    Returns:
        The metadata (fields of `Card`) and the tensors of the model by name.

    Raises:
        Exception: One of `BROKEN`, if the file is invalid.
    """
    entries = json.loads(content)
    lists = {key: entries.pop(name) for name, key in NUMBERS.items() if name in entries}
    numbers = {key: torch.tensor(list_, dtype=torch.float64) for key, list_ in lists.items()}
    numbers |= {name: numbers[name].view(entries["shape"]) for name in ("mean", "std")}
    return entries, numbers


def _of_safetensors(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Parse a safetensors file.

    Args:
        content: The bytes of the file.

    Returns:
        The metadata (fields of `Card`) and the tensors of the model by name.

    Raises:
        Exception: SafetensorError or one of `BROKEN`, if the file is invalid.
    """
    tensors = safetensors.torch.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["fedopt"]), tensors


def _built(card: Card, tensors: dict[str, Tensor]) -> Model:
    """Build a model from its metadata and its tensors.

    Memory is only allocated for the tensors themselves.

    Args:
        card: The metadata.
        tensors: The tensors by name.

    Raises:
        ValueError, RuntimeError: A name, a shape or a number is invalid.
    """
    outputs = len(card.classes) or 1
    model = Model(_network(card, outputs), None, card)
    for pair, shape in ((("mean", "std"), card.shape), (("scale", "shift"), [outputs])):
        for name in pair if {*pair} & {*tensors} else ():
            setattr(model, name, torch.empty(shape, device="meta"))
    model.load_state_dict(tensors, assign=True)
    if any(values and len(values) != card.shape[0] for values in (card.features, card.fill)):
        raise ValueError("its feature names do not match the shape of an example")
    positive = "std" not in tensors or tensors["std"].min() > 0
    if not positive or not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise ValueError("it contains numbers that are not finite, or standard deviations that are not positive")
    return model


def _network(card: Card, outputs: int) -> nn.Module:
    """Build the untrained network that the metadata describe.

    Parameters are created without memory (on the meta device), except those of a custom network.

    Args:
        card: The metadata of the model.
        outputs: Number of outputs of the network.
    """
    model, widths = card.network["model"], card.network.get("widths", [])
    if isinstance(model, dict) or "." in model:
        with_project()
        return custom.maker(model, 0)[0]()
    with torch.device("meta"):
        net = flat.build(model, widths, card.shape, outputs, 0, dropout=card.network.get("dropout", 0.0))
        return net.trained(net.initial)
