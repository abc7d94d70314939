"""The steps of an image's preprocessing, with Pillow and torch alone. For Pillow images, each step has the same result
as torchvision's transform of the same name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Compose:
    """Several steps, one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize:
    """The step that scales an image's shorter side to `size` pixels, by a bilinear filter with antialiasing."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        from PIL import Image

        width, height = image.size
        shorter, longer = sorted((width, height))
        if shorter == self.size:
            return image
        scaled = int(self.size * longer / shorter)  # rounded down, as torchvision does
        size = (self.size, scaled) if width <= height else (scaled, self.size)
        return image.resize(size, Image.Resampling.BILINEAR)


class CenterCrop:
    """The step that cuts out the middle `size` × `size` pixels of an image; beyond the image's edges they are black."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        from PIL import ImageOps

        size, (width, height) = self.size, image.size
        if size > width or size > height:
            left, top = (max(0, (size - each) // 2) for each in (width, height))
            right, bottom = (max(0, (size - each + 1) // 2) for each in (width, height))
            image = ImageOps.expand(image, (left, top, right, bottom), fill=0)
            width, height = image.size
            if (width, height) == (size, size):
                return image
        top, left = round((height - size) / 2.0), round((width - size) / 2.0)
        return image.crop((left, top, left + size, top + size))


class ToTensor:
    """The step that turns an image into a float32 tensor of channels × rows × columns, with bytes scaled to 0…1."""

    def __call__(self, image: Any) -> Any:
        import numpy as np
        import torch

        array = np.array(image, copy=True)
        if array.ndim == 2:
            array = array[:, :, None]
        tensor = torch.from_numpy(array).permute(2, 0, 1).contiguous()
        return tensor.to(torch.float32).div(255) if tensor.dtype is torch.uint8 else tensor


class Normalize:
    """The step that normalizes a tensor's channels: it subtracts `mean` and divides by `std`, each with a value per
    channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean = mean
        self.std = std

    def __call__(self, tensor: Any) -> Any:
        import torch

        mean, std = (torch.as_tensor(each, dtype=tensor.dtype).view(-1, 1, 1) for each in (self.mean, self.std))
        return tensor.clone().sub_(mean).div_(std)


#: Mean and standard deviation of the channels that models for ImageNet expect.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def imagenet() -> Compose:
    """The preprocessing of ImageNet's classifiers: scaled to 256 pixels on the shorter side, cut to the middle 224 ×
    224 pixels, normalized."""
    return Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(MEAN, STD)])
