"""Data sets of image files in one folder per class, FOLDER/<class>/<image>, the layout of torchvision's ImageFolder."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image, ImageOps
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import VALIDATES, checked, npz_arrays, refuse_larger, split_at_random
from fedopt.data.labelled import LabelledData, Pixels
from fedopt.data.tables import Fraction
from fedopt.errors import UserError, first_line
from fedopt.files import expanded

_config = ConfigDict(extra="forbid")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # for some others, Pillow runs external programs
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


@dataclass(frozen=True, config=_config)
class Folder:
    """Images in one folder per class.

    They have one channel if all images are grey, otherwise three; transparency is dropped. The class folders may be inside
    the folders `train`, `val` and `test`, of which `train` and at least one of the others must exist. Images in `val` are
    for validation. Without `test`, a random fraction of all images (including those in `val`) is used for testing. Files
    and folders whose names begin with a dot are ignored.

    Args:
        path: The folder.
        size: Size to scale the images to, in pixels: one number or [height, width]. None: images are not scaled, and must
            all have the same size.
        test: Fraction of the images used for testing if there is no folder `test`.
        split_seed: Seed of the random choice of these test images.
        pixels: How inputs are scaled for models (see `LabelledData`).
    """

    path: str
    size: PositiveInt | Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        """Read all images and return the data.

        Raises:
            UserError: An image is damaged, images differ in size, or a folder is missing or empty.
        """
        path = expanded(self.path)
        splits = {name: path / name for name in ("train", "val", "test") if (path / name).is_dir()}
        if "train" not in splits or len(splits) == 1:
            splits = {"train": path}
        labelled = [(file, split) for split, folder in splits.items() for file in _images(folder)]
        of_split = np.array([split for _, split in labelled])
        columns = {"x": self._read([file for file, _ in labelled], path)}
        columns["y"] = np.array([file.parent.name for file, _ in labelled])
        if "test" in splits:
            rows = np.flatnonzero(of_split != "test"), np.flatnonzero(of_split == "test")
        else:
            rows = split_at_random(len(labelled), self.test, self.split_seed, path)
        arrays = npz_arrays(columns, rows)
        if "val" in splits:
            arrays[VALIDATES] = of_split[rows[0]] == "val"
        return replace(checked(arrays, path), pixels=self.pixels)

    def _read(self, files: list[Path], path: Path) -> np.ndarray:
        """Read images into one array.

        Args:
            files: Paths of the images.
            path: The folder of the data set, for the message.

        Returns:
            The images, uint8, ``[n, height, width]`` if all are grey, otherwise ``[n, height, width, 3]``.

        Raises:
            UserError: The images differ in size, or do not fit in memory.
        """
        first = self._open(files[0])
        refuse_larger(path, 3 * first.height * first.width * len(files))
        images = [first, *map(self._open, files[1:])]
        for file, image in zip(files, images, strict=True):
            if image.size != first.size:
                sizes = f"{image.height} x {image.width} pixels, not {first.height} x {first.width}"
                raise UserError(f"{file}: has {sizes} like {files[0]}; scale all images with dataset.size=N")
        mode = "RGB" if any(image.mode == "RGB" for image in images) else "L"
        return np.stack([np.asarray(image.convert(mode)) for image in images])

    def _open(self, file: Path) -> Image.Image:
        """Open an image in its upright orientation, in Pillow's mode L if it is grey and in RGB otherwise.

        Args:
            file: The image file.

        Raises:
            UserError: The file is damaged, or it has more than 8 bits per channel.
        """
        try:
            with Image.open(file, formats=FORMATS) as opened:
                if opened.mode[0] in "IF":
                    raise ValueError("it has more than 8 bits per channel; dataset=npz reads arrays of any numbers")
                image = ImageOps.exif_transpose(opened).convert("L" if opened.mode in ("1", "L", "LA") else "RGB")
        except Exception as error:  # Pillow raises many different exceptions for damaged files
            raise UserError(f"{file}: cannot be read as an image ({first_line(error)}); replace or remove it") from None
        if self.size is None:
            return image
        height, width = self.size if isinstance(self.size, list) else [self.size, self.size]
        return image.resize((width, height), Image.Resampling.BILINEAR)


def _images(folder: Path) -> list[Path]:
    """List the images in a folder that contains one folder per class.

    Args:
        folder: The folder.

    Returns:
        The paths, sorted by class and name.

    Raises:
        UserError: The folder does not exist, or a class has no images.
    """
    classes = [inner for inner in sorted(folder.glob("[!.]*")) if inner.is_dir()]
    of_class = [sorted(file for file in inner.glob("[!.]*") if file.suffix.lower() in SUFFIXES) for inner in classes]
    if not classes or not all(of_class):
        empty = next((inner for inner, files in zip(classes, of_class, strict=True) if not files), folder)
        raise UserError(f"{empty}: is missing, or has no images; {folder} must have a folder of images for each class")
    return [file for files in of_class for file in files]
