"""The built-in data sets, and data sets in a user's .npz file.

MNIST and the digits are included in fedopt. Fashion-MNIST and CIFAR-10 are read from the data folder, and downloaded to
it by torchvision on first use. The data folder is `dataset.root`, else the environment variable FEDOPT_DATA, else
~/.cache/fedopt. If it contains a file `<name>.npz`, this file is used instead.
"""

import os
import socket
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from pydantic import ConfigDict, StrictBool
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import KEYS, Channels, checked, read_npz
from fedopt.data.labelled import LabelledData, Pixels
from fedopt.errors import UserError, first_line
from fedopt.files import expanded

_config = ConfigDict(extra="forbid")
SHIPPED = Path(__file__).parent  # folder of the data sets included in fedopt
DOWNLOADED = {  # torchvision's folder, shape of an image, source of the data
    "fashion_mnist": ("FashionMNIST", "28, 28", "github.com/zalandoresearch/fashion-mnist"),
    "cifar10": ("cifar-10-batches-py", "32, 32, 3", "www.cs.toronto.edu/~kriz/cifar.html"),
}


def data_folder(root: str | None) -> Path:
    """Return the folder of data sets: ``root``, else the environment variable FEDOPT_DATA, else ~/.cache/fedopt.

    Args:
        root: The folder. None: it is taken from the environment variable or is the default folder.
    """
    return expanded(root or os.environ.get("FEDOPT_DATA") or "~/.cache/fedopt")


@dataclass(frozen=True, config=_config)
class Torchvision:
    """MNIST (included in fedopt), or Fashion-MNIST or CIFAR-10 from torchvision.

    If the data folder contains a file ``<name>.npz``, this file is used instead.

    Args:
        name: Name of the data set.
        root: The data folder. None: the environment variable FEDOPT_DATA, else ~/.cache/fedopt.
        pixels: How inputs are scaled for models (see `LabelledData`).
    """

    name: Literal["mnist", "fashion_mnist", "cifar10"]
    root: str | None = None
    pixels: Pixels = "standardised"

    @property
    def path(self) -> str:
        """The .npz file, or the folder of torchvision's files, that the data are read from or downloaded to."""
        npz = data_folder(self.root) / f"{self.name}.npz"
        other = SHIPPED / npz.name if self.name == "mnist" else npz.with_name(DOWNLOADED[self.name][0])
        return str(npz if npz.exists() else other)

    def load(self) -> LabelledData:
        """Return the data. Fashion-MNIST and CIFAR-10 are downloaded if the data folder does not contain them.

        Raises:
            UserError: The files are damaged, the folder cannot be created, or the download fails.
        """
        path = Path(self.path)
        return replace(read_npz(path) if path.suffix else self._torchvision(path), pixels=self.pixels)

    def _torchvision(self, path: Path) -> LabelledData:
        """Read the data with torchvision, and download them first if they are missing.

        Args:
            path: Folder of torchvision's files.

        Raises:
            UserError: The files are damaged, or the download fails.
        """
        from fedopt.networks import torchvision

        cls = {"fashion_mnist": torchvision.datasets.FashionMNIST, "cifar10": torchvision.datasets.CIFAR10}[self.name]
        before, found = socket.getdefaulttimeout(), path.exists()
        above = next(folder for folder in path.parents if folder.exists())
        socket.setdefaulttimeout(20)  # do not hang if the network drops packets
        try:
            with TemporaryDirectory(prefix=".download-", dir=None if found else above) as work:  # removed
                sets = [cls(path.parent if found else work, train=train, download=not found) for train in (True, False)]
                if not found:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Path(work, path.name).rename(path)
        except Exception as error:  # torchvision raises many different exceptions
            what = f"{path} is incomplete, delete it" if found else f"is not in {path.parent}, and cannot be downloaded"
            _, shape, source = DOWNLOADED[self.name]
            npz = f"{self.name}.npz from the files of {source}: x_train and x_test [n, {shape}] of uint8, y_train and y_test [n]"
            how = f"put {npz} there, set FEDOPT_DATA, or use dataset=mnist or dataset=digits"
            raise UserError(f"dataset={self.name}: {what} ({first_line(error).rstrip(':')}); {how}") from None
        finally:
            socket.setdefaulttimeout(before)
        arrays = [np.asarray(array) for data in sets for array in (data.data, data.targets)]
        return checked(dict(zip(KEYS, arrays, strict=True)), path.parent)


@dataclass(frozen=True, config=_config)
class Npz:
    """A data set in a user's .npz file with the arrays x_train, y_train, x_test and y_test.

    Args:
        path: The file.
        pixels: How inputs are scaled for models (see `LabelledData`).
        channels: Position of the channel axis of colour images, ``"first"`` or ``"last"``. None: last.
        tokens: Whether ``x`` contains token ids.
    """

    path: str
    pixels: Pixels = "standardised"
    channels: Channels | None = None
    tokens: StrictBool = False

    def load(self) -> LabelledData:
        """Read the .npz file and return the data. Raise UserError if the file is missing or broken (see `read_npz`)."""
        return replace(read_npz(expanded(self.path), self.channels, self.tokens), pixels=self.pixels)


@dataclass(frozen=True, config=_config)
class Digits:
    """1797 images of handwritten digits with 8 x 8 pixels and values from 0 to 16, included in fedopt.

    Every fifth image is a test example.

    Args:
        pixels: How inputs are scaled for models (see `LabelledData`).
    """

    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        """Return the images, their classes, and their split into training and test examples."""
        return replace(read_npz(SHIPPED / "digits.npz"), pixels=self.pixels)
