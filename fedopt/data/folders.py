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
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # of pillow, which knows others that start programs
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
        labelled = [(file, classes.index(name)) for part in parts for name in sorted(part) for file in part[name]]
        images = self._read([file for file, _ in labelled], path)
        y = np.array([label for _, label in labelled])
        if len(parts) == 1:
            rows = divided(len(y), self.test, self.split_seed, path)
        else:
            train = sum(map(len, parts[0].values()))
            rows = np.arange(train), np.arange(train, len(y))
        arrays = dict(zip(KEYS, (array[part] for part in rows for array in (images, y)), strict=True))
        return replace(checked(arrays, path, "last"), pixels=self.pixels, class_names=tuple(classes))

    def _read(self, files: list[Path], path: Path) -> np.ndarray:
        """[n, height, width, channels], uint8."""
        size = [self.size] * 2 if isinstance(self.size, int) else self.size
        first = _open(files[0], size)
        refuse_larger(path, 3 * first.height * first.width * len(files))
        images = [first, *(_open(file, size) for file in files[1:])]
        for file, image in zip(files, images, strict=True):
            if image.size != first.size:
                sizes = [f"{height} x {width}" for width, height in (image.size, first.size)]
                raise UserError(f"{file}: has {sizes[0]} pixels, and {files[0]} {sizes[1]}; set dataset.size=N")
        mode = "L" if all(image.mode == "L" for image in images) else "RGB"
        x = np.stack([np.asarray(image.convert(mode)) for image in images])
        return x if x.ndim == 4 else x[..., None]


def _files(folder: Path) -> dict[str, list[Path]]:
    """The images of each class. Raises UserError where a class has none, and where there are no classes."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; it should have a folder of images for each class")
    classes = {
        inner.name: sorted(file for file in inner.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        for inner in sorted(folder.iterdir())
        if inner.is_dir() and not inner.name.startswith(".")
    }
    if empty := [folder / name for name, files in classes.items() if not files] or [folder] * (not classes):
        raise UserError(f"{empty[0]}: has no images; {folder} should have a folder of images for each class")
    return classes


def _open(file: Path, size: list[int] | None) -> Image.Image:
    """In grey or in colours. size: [height, width], None for its own."""
    try:
        with Image.open(file, formats=FORMATS) as opened:
            image = opened.convert("L" if opened.mode in ("1", "L") else "RGB")
    except Exception as error:  # pillow has many ways to say that a file is broken, or a bomb
        raise UserError(f"{file}: is no image that can be read ({first_line(error)})") from None
    return image if size is None else image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
