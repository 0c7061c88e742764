"""Folders of images: FOLDER/<class>/<image>, as torchvision's ImageFolder has them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image, ImageOps
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import VALIDATES, checked, divided, parted, refuse_larger
from fedopt.data.labelled import LabelledData, Pixels
from fedopt.data.names import identifiers
from fedopt.data.tables import Fraction
from fedopt.errors import UserError, first_line
from fedopt.files import expanded

_config = ConfigDict(extra="forbid")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # of pillow, which knows others that start programs
NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
SPLITS = {name: split for split, names in NAMES.items() for name in names}
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


@dataclass(frozen=True, config=_config)
class Folder:
    """Images in one folder per class; classes are sorted by name.

    Images have one channel if all are grey, else three, and one more if some are transparent. Images of more than 8 bits keep
    their values.

    The folders of classes may lie in folders `train`, and `test` or `val` or both. `training`, `testing`, `valid` and
    `validation` are read likewise; capitals do not matter. The images in `val` are for validation. If there is no folder for
    testing, the fraction `test` of all images, those in `val` included, is drawn for it.

    Args:
        path: The folder.
        size: The size to scale images to, in pixels: one number or [height, width]. None: images are not scaled, and all must
            have the same size.
        test: The fraction for testing if there is no folder for it.
        split_seed: The seed of that draw.
        pixels: As in `LabelledData`.
    """

    path: str
    size: PositiveInt | Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        path, passed = expanded(self.path), list[Path]()
        splits = _splits(path)
        parts = {split: _files(folder, passed) for split, folder in (splits or {"train": path}).items()}
        classes = sorted(parts["train"])
        for split, part in parts.items():
            if unknown := [name for name in part if name not in classes]:
                lacks = f"the class {unknown[0]} has no folder in {splits['train']}"
                raise UserError(f"{splits[split]}: {lacks}; give every class training images, or remove it here")
        if len(classes) < 2:
            raise UserError(
                f"{path}: {classes[0]} is the only class; dataset.path must have a folder for each of two or more classes"
            )
        labelled = [
            (file, classes.index(name), split)
            for split, part in parts.items()
            for name in sorted(part)
            for file in part[name]
        ]
        images, y = self._read([file for file, *_ in labelled], path), np.array([label for _, label, _ in labelled])
        of_split = np.array([split for *_, split in labelled])
        if "test" in parts:
            train, test = np.flatnonzero(of_split != "test"), np.flatnonzero(of_split == "test")
        else:
            train, test = divided(len(y), self.test, self.split_seed, path)
        arrays = parted({"x": images, "y": y}, (train, test))
        if "val" in parts:
            arrays[VALIDATES] = of_split[train] == "val"
        notes = [
            f"{len(passed):,} files are ignored, since they are hidden, or not images in a folder of a class"
        ] * bool(passed)
        notes += ["some images are transparent: transparency is the last channel"] * (images.shape[-1] in (2, 4))
        held_out = {image.tobytes() for image in arrays["x_test"]}
        if twice := sum(image.tobytes() in held_out for image in arrays["x_train"]):
            notes.append(f"{twice:,} training images are equal to a test image")
        data = checked(arrays, path, "last", names=tuple(classes))
        return replace(data, pixels=self.pixels, notes=(*notes, *data.notes))

    def _read(self, files: list[Path], path: Path) -> np.ndarray:
        """Read images as one array [n, height, width, channels], uint8, or float32 for more than 8 bits.

        files: their paths. path: the folder, for a message. Raises UserError if sizes or depths differ, or memory does not
            suffice.
        """
        size = [self.size] * 2 if isinstance(self.size, int) else self.size
        first = _open(files[0], size)
        refuse_larger(path, (3 if first.mode == "L" else 8) * first.height * first.width * len(files))
        images = [first, *(_open(file, size) for file in files[1:])]
        for file, image in zip(files, images, strict=True):
            if image.size != first.size:
                sizes = [f"{height} x {width}" for width, height in (image.size, first.size)]
                raise UserError(
                    f"{file}: has {sizes[0]} pixels, and {files[0]} has {sizes[1]}; scale all with dataset.size=N"
                )
            if (image.mode == "F") != (first.mode == "F"):
                deep, flat = (file, files[0]) if image.mode == "F" else (files[0], file)
                raise UserError(
                    f"{deep}: has more than 8 bits per pixel, and {flat} has 8; save all with the same depth"
                )
        modes = {image.mode for image in images}
        colours, alpha = modes & {"RGB", "RGBA"}, modes & {"LA", "RGBA"}
        mode = first.mode if first.mode == "F" else ("RGB" if colours else "L") + ("A" if alpha else "")
        x = np.stack([np.asarray(image.convert(mode)) for image in images])
        return x if x.ndim == 4 else x[..., None]


def _splits(folder: Path) -> dict[str, Path]:
    """Return the folders of the splits, by train, val and test; {} if the folder is not divided into splits.

    Raises UserError if the folder is missing, or has further folders beside those of splits.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; dataset.path must have a folder of images for each class")
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and not _hidden(path, folder)]
    splits = {SPLITS[path.name.lower()]: path for path in inner if path.name.lower() in SPLITS}
    if len(splits) < 2 or "train" not in splits:
        return {}
    if others := [path.name for path in inner if path not in splits.values()]:
        raise UserError(
            f"{folder}: has the folders {', '.join(path.name for path in splits.values())} of splits, and also "
            f"the folder {others[0]}; move {others[0]} elsewhere"
        )
    return splits


def _hidden(path: Path, folder: Path) -> bool:
    """Tell whether a system or an editor made a path inside the folder.

    Such names begin with a dot or __MACOSX, or are Thumbs.db or desktop.ini.
    """
    parts = path.relative_to(folder).parts
    return any(part.startswith((".", "__MACOSX")) or part.lower() in ("thumbs.db", "desktop.ini") for part in parts)


def _files(folder: Path, passed: list[Path]) -> dict[str, list[Path]]:
    """Return the paths of the images of each class, by class.

    folder: it has a folder for each class. passed: a list, changed in place; files that are not images are appended to it.
        Raises UserError if a class has no images, if there are no classes, and if images lie in a folder of a class's folder.
    """
    classes = dict[str, list[Path]]()
    inners = sorted(folder.iterdir())
    names = [inner.name for inner in inners if inner.is_dir() and not _hidden(inner, folder)]
    name_of = dict(zip(names, map(str, identifiers(np.array(names), str(folder))), strict=True))
    for inner in inners:
        if inner.name in name_of:
            files = sorted(file for file in inner.rglob("*") if file.is_file())
            found = [f for f in files if f.suffix.lower() in SUFFIXES and not _hidden(f, folder)]
            classes.setdefault(name_of[inner.name], []).extend(found)
            passed += set(files) - set(found)
            if deeper := next((file for file in found if file.parent != inner), None):
                raise UserError(f"{deeper}: lies in a folder inside that of a class; put images directly into {inner}")
        elif not inner.is_dir():
            passed.append(inner)
        else:
            passed += [file for file in inner.rglob("*") if file.is_file()]
    if empty := [folder / name for name, files in classes.items() if not files] or [folder] * (not classes):
        raise UserError(f"{empty[0]}: has no images; {folder} must have a folder of images for each class")
    return classes


def _open(file: Path, size: list[int] | None) -> Image.Image:
    """Open an image upright, in pillow's mode L, LA, RGB or RGBA, or F for more than 8 bits.

    size: [height, width] to scale it to; None: its own size. Raises UserError for several frames, more than 24 bits, and
        broken files.
    """
    try:
        with Image.open(file, formats=FORMATS) as opened:
            if (frames := getattr(opened, "n_frames", 1)) > 1 and opened.format != "MPO":  # a camera's has a preview
                raise UserError(f"{file}: has {frames} frames; save the frames that you want as separate images")
            image = ImageOps.exif_transpose(opened)
            if image.mode[0] in "IF":
                numbers, image = np.asarray(image), image.convert("F")
                if numbers.dtype.kind != "f" and (np.asarray(image) != numbers).any():
                    raise UserError(
                        f"{file}: has numbers of more than 24 bits; save the images as an .npz, and use dataset=npz"
                    )
            else:
                grey = image.mode in ("1", "L", "LA")
                if image.has_transparency_data:
                    image = image.convert("LA" if grey else "RGBA")
                if "A" not in image.mode or np.asarray(image)[..., -1].min() == 255:  # nothing is transparent
                    image = image.convert("L" if grey else "RGB")
    except UserError:
        raise
    except Exception as error:  # pillow has many ways to say that a file is broken, or a bomb
        raise UserError(f"{file}: cannot be read as an image ({first_line(error)}); replace or remove it") from None
    return image if size is None else image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
