"""Folders of images: FOLDER/<class>/<image>, as torchvision's ImageFolder has them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.data.datasets import KEYS, LabelledData, Pixels, checked, divided, expanded, refuse_larger
from fedopt.data.tables import Fraction
from fedopt.errors import UserError, first_line

_config = ConfigDict(extra="forbid")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


@dataclass(frozen=True, config=_config)
class Folder:
    """Images in a folder for each class, in the order of their names; grey ones have one channel if all are grey, else three.

    Where FOLDER/train and FOLDER/test are there, those have the classes; else the fraction `test` of the images, at random by
    `split_seed`, is for testing. size: of the images in pixels, one number or [height, width]; None: as they are, all of one size.
    """

    path: str
    size: PositiveInt | Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        path = expanded(self.path)
        halves = [path / "train", path / "test"]
        parts = [_files(half) for half in (halves if all(half.is_dir() for half in halves) else [path])]
        classes = sorted(parts[0])
        if unknown := [name for name in parts[-1] if name not in classes]:
            raise UserError(f"{halves[1]}: the class {unknown[0]} is not in {halves[0]}")
        labelled = [[(file, classes.index(name)) for name in sorted(part) for file in part[name]] for part in parts]
        images = self._read([file for part in labelled for file, _ in part], path)
        y = np.array([c for part in labelled for _, c in part])
        if len(parts) == 1:
            rows = divided(len(y), self.test, self.split_seed, path)
        else:
            rows = (np.arange(len(labelled[0])), np.arange(len(labelled[0]), len(y)))
        arrays = dict(zip(KEYS, [v[of] for of in rows for v in (images, y)], strict=True))
        return replace(checked(arrays, path, "last"), pixels=self.pixels, class_names=tuple(classes))

    def _read(self, files: list[Path], path: Path) -> np.ndarray:
        """[n, height, width, channels], uint8."""
        wanted = [self.size] * 2 if isinstance(self.size, int) else self.size
        opened = [_open(file, wanted) for file in files[:1]]
        height, width = opened[0].height, opened[0].width
        refuse_larger(path, 3 * height * width * len(files))
        opened += [_open(file, wanted) for file in files[1:]]
        for file, image in zip(files, opened, strict=True):
            if (image.height, image.width) != (height, width):
                raise UserError(
                    f"{file}: has {image.height} x {image.width} pixels, and {files[0]} {height} x {width}; dataset.size=N "
                    "makes all of them N x N"
                )
        mode = "L" if all(image.mode == "L" for image in opened) else "RGB"
        x = np.stack([np.asarray(image.convert(mode)) for image in opened])
        return x if x.ndim == 4 else x[..., None]


def _files(folder: Path) -> dict[str, list[Path]]:
    """The images of each class. Raises UserError for a class without any, and where there are no classes."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; it should have a folder of images for each class")
    found = {
        inner.name: sorted(file for file in inner.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        for inner in sorted(folder.iterdir())
        if inner.is_dir() and not inner.name.startswith(".")
    }
    if not found:
        raise UserError(f"{folder}: has no folders; it should have a folder of images for each class")
    if empty := [name for name, files in found.items() if not files]:
        raise UserError(f"{folder / empty[0]}: has no images ({', '.join(sorted(SUFFIXES))})")
    return found


def _open(file: Path, size: list[int] | None) -> Image.Image:
    """In grey or in colours. size: [height, width], None for its own."""
    try:
        with Image.open(file) as image:
            read = image.convert("L" if image.mode in ("1", "L") else "RGB")
    except Exception as error:  # pillow has many ways to say that a file is broken, or a bomb
        raise UserError(f"{file}: is no image that can be read ({first_line(error)})") from None
    return read if size is None else read.resize((size[1], size[0]), Image.Resampling.BILINEAR)
