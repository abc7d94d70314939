"""Makes tests/data/saved_model: digits, recognised by one layer.

Run it with TensorFlow: `python -m tests.data.make_saved_model`. Trained on the first 300 of the held-out digits, so
that the other 150 tell whether it has learnt something. It serves `scores` of each digit and, as a second signature,
the `label` alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

DATA = Path(__file__).parent
NUM_TRAINED = 300


def trained(images: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float32]:
    """Weights of a softmax regression, a last row of biases included."""
    inputs = np.hstack([images / 16.0, np.ones((len(images), 1))])
    weights = np.zeros((inputs.shape[1], 10))
    for _ in range(500):
        scores = np.exp(inputs @ weights)
        weights += 0.5 * inputs.T @ (np.eye(10)[labels] - scores / scores.sum(axis=1, keepdims=True)) / len(images)
    return weights.astype(np.float32)


class Digits(tf.Module):  # type: ignore[misc]  # TensorFlow has no type hints
    """[rows, 64] pixels from 0 to 16 → the probability of each digit."""

    def __init__(self, weights: NDArray[np.float32]) -> None:
        super().__init__()
        self.weights, self.biases = tf.Variable(tf.constant(weights[:-1] / 16)), tf.Variable(tf.constant(weights[-1]))

    def scores(self, pixels: Any) -> dict[str, Any]:
        return {"scores": tf.nn.softmax(tf.matmul(pixels, self.weights) + self.biases)}

    def label(self, pixels: Any) -> dict[str, Any]:
        return {"label": tf.argmax(self.scores(pixels)["scores"], axis=1)}


def main() -> None:
    digits = np.load(DATA / "held_out_digits.npz")
    model = Digits(trained(digits["images"][:NUM_TRAINED], digits["labels"][:NUM_TRAINED]))
    pixels = tf.TensorSpec([None, 64], tf.float32, "pixels")
    signatures = {
        "serving_default": tf.function(model.scores).get_concrete_function(pixels),
        "label": tf.function(model.label).get_concrete_function(pixels),
    }
    tf.saved_model.save(model, str(DATA / "saved_model"), signatures)
    (DATA / "saved_model" / "fingerprint.pb").unlink()  # of no use, and of another value each time


if __name__ == "__main__":
    main()
