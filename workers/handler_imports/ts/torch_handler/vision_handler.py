"""The base of handlers of images: reads images from requests, and explains results by captum, which is imported for the
first explanation."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ts.handler_utils.timer import timed
from ts.torch_handler.base_handler import BaseHandler

if TYPE_CHECKING:
    from ts.context import Context


class VisionHandler(BaseHandler):
    """A handler of images. A subclass sets `image_processing`, a function from a Pillow image to a tensor."""

    image_processing: Callable[[Any], Any]

    def __init__(self) -> None:
        super().__init__()
        self.ig: Any = None  # captum's IntegratedGradients of the model; None until the first explanation

    def initialize(self, context: Context) -> None:
        """Load the model, and lift Pillow's limit of pixels if limit_max_image_pixels is false."""
        super().initialize(context)
        if context.system_properties.get("limit_max_image_pixels") is False:
            from PIL import Image

            Image.MAX_IMAGE_PIXELS = None

    @timed
    def preprocess(self, data: Any) -> Any:
        """The images of a batch as one tensor: an image is a file's bytes, a base64 text of such bytes, or nested lists
        of the tensor's values."""
        import torch

        images = []
        for row in data:
            image = row.get("data") or row.get("body")
            if isinstance(image, str):
                image = base64.b64decode(image)
            if isinstance(image, (bytearray, bytes)):
                from PIL import Image

                image = self.image_processing(Image.open(io.BytesIO(image)))
            else:
                image = torch.FloatTensor(image)
            images.append(image)
        return torch.stack(images).to(self.device)

    def get_insights(self, tensor_data: Any, _: Any, target: int = 0) -> list[Any]:
        """How much each value of the batch's images has contributed to class `target`, by integrated gradients in 15
        steps. Raises ImportError without captum."""
        if self.ig is None:
            from captum.attr import IntegratedGradients  # type: ignore[import-not-found]  # users install it

            self.ig = IntegratedGradients(self.model)
        result: list[Any] = self.ig.attribute(tensor_data, target=target, n_steps=15).tolist()
        return result
