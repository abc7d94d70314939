"""The class DenseNetHandler of TorchServe's first example, from which users' handlers are derived."""

from ts.torch_handler.image_classifier import ImageClassifier


class DenseNetHandler(ImageClassifier):
    """An image classifier under the name of TorchServe's example."""
