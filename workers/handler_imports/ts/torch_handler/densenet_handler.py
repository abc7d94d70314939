"""The handler of TorchServe's first example, as far as others derive from it."""

from ts.torch_handler.image_classifier import ImageClassifier


class DenseNetHandler(ImageClassifier):
    """An image classifier under the name of TorchServe's example."""
