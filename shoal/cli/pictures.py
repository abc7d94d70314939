"""A picture's file as a tensor, for `shoal infer` and `run`: decoded by Pillow, in the size and the layout of an
input, by the rules of the page's form (frontend/page/static/media.js)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: Endings of the names of files that are read as pictures.
ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
#: The types of errors that Pillow raises for a damaged file.
_FAULTS = (OSError, ValueError, SyntaxError)
#: The scale by ImageNet's means and deviations of red, green and blue, for pixels from 0 to 1.
_IMAGENET = "imagenet"
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: The sizes by which a dimension of a shape is recognised as the channels.
_CHANNELS = (1, 3, 4)


class PictureError(Exception):
    """A file is no picture for an input; the message says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Height, width and number of channels that an input's shape, without a batch dimension, asks of a picture, and the
    order of its dimensions. A height or width below 0 is that of the picture."""

    channels: int
    height: int
    width: int
    is_channels_first: bool = False
    shape: Sequence[int] | None = None  # [height, width] or [pixels], if no dimension is for channels


def split(text: str) -> tuple[Path, str]:
    """The file and the scale of a value: "two.png,0..16" → two.png and "0..16"; "" without a scale."""
    name, comma, scale = text.rpartition(",")
    return (Path(name), scale) if comma and Path(name).suffix.lower() in ENDINGS else (Path(text), "")


def picture(path: Path, dims: Sequence[int], scale: str, dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    """The pixels of a file as a tensor of these dims, without a batch dimension; from 0 to 255, or as `scale` says:
    "0..1" or "imagenet". Raises PictureError."""
    layout = _layout(dims)
    if layout is None:
        raise PictureError("a picture has height, width and 1, 3 or 4 channels")
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise PictureError("a picture is read by Pillow (pip install pillow)") from None
    try:
        with Image.open(path) as file:
            shown: Any = ImageOps.exif_transpose(file)  # upright: a camera's picture may say how it is to be turned
            if shown.mode.startswith("I"):  # grey values of 16 bits, which Pillow would cut off at 255
                shown = Image.fromarray((np.asarray(shown) / 257).round().astype(np.uint8))
            width = layout.width if layout.width > 0 else shown.width
            height = layout.height if layout.height > 0 else shown.height
            colours = shown.convert("RGBA").resize((width, height), Image.Resampling.BILINEAR)
            if layout.channels != 4:  # transparent parts become white, as on a white page
                white = Image.new("RGBA", colours.size, "white")
                colours = Image.alpha_composite(white, colours).convert("RGB")
            pixels = np.asarray(colours.convert("L") if layout.channels == 1 else colours, np.float64)
    except UnidentifiedImageError:
        raise PictureError(f"{path} is no picture") from None
    except (*_FAULTS, Image.DecompressionBombError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise PictureError(f"cannot read {path}: {why}") from None
    scaled = _scaled(pixels.reshape(*pixels.shape[:2], layout.channels), scale)
    if dtype.kind != "f":
        scaled = scaled.round()
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        if scaled.min() < least or scaled.max() > most:
            raise PictureError(
                f"it takes {least} to {most}, and the pixels are {scaled.min():g} to {scaled.max():g}: "
                f"@{path},0..{most} has them fit"
            )
    if layout.shape is not None:
        sizes = (scaled.size,) if len(layout.shape) == 1 else scaled.shape[:2]
        return scaled.reshape(sizes).astype(dtype)
    return (scaled.transpose(2, 0, 1) if layout.is_channels_first else scaled).astype(dtype)


def _layout(dims: Sequence[int]) -> Layout | None:
    """The layout of a shape; None if no picture fits the shape."""
    if len(dims) == 3 and (dims[0] in _CHANNELS or (dims[0] < 0 and dims[2] not in _CHANNELS)):
        return Layout(dims[0] if dims[0] > 0 else 3, dims[1], dims[2], is_channels_first=True)
    if len(dims) == 3 and dims[2] in _CHANNELS:
        return Layout(dims[2], dims[0], dims[1])
    if len(dims) == 2:
        return Layout(1, dims[0], dims[1], shape=dims)
    side = math.isqrt(dims[0]) if len(dims) == 1 and dims[0] > 15 else 0
    return Layout(1, side, side, shape=dims) if side and side * side == dims[0] else None


def _scaled(pixels: "np.ndarray[Any, Any]", scale: str) -> "np.ndarray[Any, Any]":
    """Pixels from 0 to 255, with channels last, in another scale. Raises PictureError for an unknown scale."""
    if not scale:
        return pixels
    if scale == _IMAGENET:
        if pixels.shape[2] != len(_MEAN):
            raise PictureError(f"the scale {_IMAGENET} is of 3 channels")
        return (pixels / 255 - _MEAN) / _DEVIATION
    low, dots, high = scale.partition("..")
    try:
        least, most = float(low), float(high) if dots else math.nan
    except ValueError:
        least = most = math.nan
    if not math.isfinite(least) or not math.isfinite(most):
        raise PictureError(f"the pixels' scale is 0..1 or the like, or {_IMAGENET}, not '{scale}'")
    return least + pixels * ((most - least) / 255)
