"""Makes the files of the text samples: the tokenizer's vocabulary, the encoder, the embedding table, and their page.

Run by scripts/make-models. No deep-learning framework is needed: pieces of words get vectors from the pieces that they
occur with (positive pointwise mutual information, then its singular vectors), an attention layer lets similar pieces of
a sentence strengthen each other, and a linear layer trained by scikit-learn names the topic.
"""

import importlib.util
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression

from scripts.make_models import REPOSITORY, onnx_model, tensor, write, write_model
from scripts.topics import TOPICS, composed, held_out

VOCABULARY_SIZE = 640
DIMENSIONS = 64
SENTENCES_PER_TOPIC = 600
#: The scale before the softmax: how much more a piece attends to similar ones.
ATTENTION_SCALE = 4.0

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

ENCODER_CONFIG = """\
# Name, backend, inputs and outputs are read from the folder and the ONNX file. Texts of the same number of tokens share
# an execution.
max_batch_size: 64
dynamic_batching { }
"""

PAGE = """\
# text_classification: what is this sentence about?

Four models, as most deployments of a text model have them, each to be called, scaled and replaced by itself:

| model | backend | takes | gives |
| --- | --- | --- | --- |
| `tokenizer` | Python | `text`: BYTES[1] | `input_ids`, `attention_mask`: INT64[tokens] |
| `encoder` | ONNX Runtime | the two | `embedding`: FP32[{dimensions}], of length 1; `logits`: FP32[{num_topics}] |
| `postprocessing` | Python | `logits` | `label`: BYTES; `probability`: FP32; `probabilities`: FP32[{num_topics}] |
| `text_classification` | Python | `text` | `label`, `probability`: calls the three, one after the other |

```sh
curl -s localhost:8000/v2/models/text_classification/generate -d '{{"text": "{example}"}}'
```

```json
{answer}
```

`1/model.py` is the whole pipeline: business logic scripting, with `async_exec`, so that one instance takes up other
texts while it waits for a model. Tensors go from model to model where they lie in shared memory.

**Test accuracy: {accuracy:.4f}** ({num_right} of {num_test} sentences, written by hand, that the training did not see).
The topics are {topics}.
It was trained on {num_train:,} sentences that `scripts/topics.py` composes of word lists, so it knows a few hundred
words: a sample, not a product.

`embedding_table` looks up the encoder's {vocabulary_size} vectors by token id, out of a file that is mapped, not read.

`scripts/make-models` trains the vocabulary and the encoder and writes this page.
"""


def main() -> None:
    """Writes the generated files of the text samples."""
    training = composed(SENTENCES_PER_TOPIC)
    topics = np.array([sentence.topic for sentence in training])
    vocabulary = train_vocabulary([sentence.text for sentence in training])
    write(REPOSITORY / "tokenizer" / "1" / "vocabulary.txt", "".join(f"{piece}\n" for piece in vocabulary))
    tokenizer = load_tokenizer()
    rows = [tokenizer.tokenize(sentence.text) for sentence in training]

    table = train_embeddings(rows)
    untrained = np.zeros((DIMENSIONS, len(TOPICS)), np.float32)
    embeddings = run(encoder(table, untrained, np.zeros(len(TOPICS), np.float32)), "embedding", rows)
    # The vectors have length 1, so large weights are needed: hardly any regularisation.
    head = LogisticRegression(C=100, max_iter=1000).fit(embeddings, topics)
    model = encoder(table, head.coef_.T.astype(np.float32), head.intercept_.astype(np.float32))
    write_model("encoder", ENCODER_CONFIG, model)

    np.save(REPOSITORY / "embedding_table" / "1" / "vectors.npy", table)
    write(REPOSITORY / "postprocessing" / "labels.txt", "".join(f"{topic}\n" for topic in TOPICS))
    write_page(tokenizer, model, len(training))


# ---------------------------------------------------------------------------------------------------------------
# The vocabulary


def train_vocabulary(texts: list[str]) -> list[str]:
    """A vocabulary by byte-pair merging: letters, then again and again the most frequent pair as one piece."""
    counts = Counter(word for text in texts for word in text.split())
    letters = sorted({letter for word in counts for letter in word})
    words = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in counts}
    vocabulary = ["[PAD]", "[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    while len(vocabulary) < VOCABULARY_SIZE:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        if not pairs:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = left + right.removeprefix("##")
        if merged not in vocabulary:
            vocabulary.append(merged)
        for pieces in words.values():
            for index in range(len(pieces) - 1, 0, -1):
                if pieces[index - 1 : index + 1] == [left, right]:
                    pieces[index - 1 : index + 1] = [merged]
    return vocabulary


def load_tokenizer() -> Any:
    """The sample model `tokenizer`, so that texts are tokenized here as by the server."""
    path = REPOSITORY / "tokenizer" / "1" / "model.py"
    spec = importlib.util.spec_from_file_location("tokenizer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({})
    return model


# ---------------------------------------------------------------------------------------------------------------
# The encoder


def train_embeddings(rows: list[list[int]]) -> Array:
    """A vector per piece of the vocabulary: pieces that occur in the same sentences get similar ones."""
    present = np.zeros((len(rows), VOCABULARY_SIZE))
    for number, row in enumerate(rows):
        present[number, row] = 1
    together = present.T @ present
    expected = np.outer(present.sum(0), present.sum(0)) / len(rows)
    information = np.log(np.maximum(together, 1e-9) / np.maximum(expected, 1e-9))
    left, strength, _ = np.linalg.svd(np.where(together > 0, np.maximum(information, 0), 0))
    vectors = left[:, :DIMENSIONS] * np.sqrt(strength[:DIMENSIONS])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    table: Array = (vectors / np.maximum(lengths, 1)).astype(np.float32)
    return table


def encoder(table: Array, weight: Array, bias: Array) -> onnx.ModelProto:
    """The encoder as an ONNX model: ids and mask -> the attended vectors' mean, of length 1, and a linear layer."""
    weights: dict[str, npt.NDArray[np.generic]] = {
        "table": table,
        "scale": np.array(ATTENTION_SCALE, np.float32),
        "one": np.array(1, np.float32),
        "far": np.array(-1e9, np.float32),
        "rows": np.array([1], np.int64),
        "columns": np.array([2], np.int64),
        "weight": weight,
        "bias": bias,
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        # Each piece attends to all others, but not to padding.
        helper.make_node("Transpose", ["vectors"], ["columnwise"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["vectors", "columnwise"], ["likeness"]),
        helper.make_node("Mul", ["likeness", "scale"], ["scores"]),
        helper.make_node("Sub", ["one", "mask"], ["padding"]),
        helper.make_node("Mul", ["padding", "far"], ["distance"]),
        helper.make_node("Unsqueeze", ["distance", "rows"], ["distances"]),
        helper.make_node("Add", ["scores", "distances"], ["seen"]),
        helper.make_node("Softmax", ["seen"], ["attention"], axis=-1),
        helper.make_node("MatMul", ["attention", "vectors"], ["context"]),
        helper.make_node("Add", ["vectors", "context"], ["hidden"]),
        # The mean without padding, of length 1.
        helper.make_node("Unsqueeze", ["mask", "columns"], ["kept"]),
        helper.make_node("Mul", ["hidden", "kept"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "rows"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "rows"], ["length"], keepdims=1),
        helper.make_node("Div", ["total", "length"], ["mean"]),
        helper.make_node("LpNormalization", ["mean"], ["embedding"], axis=-1, p=2),
        helper.make_node("Gemm", ["embedding", "weight", "bias"], ["logits"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [
        tensor("embedding", TensorProto.FLOAT, DIMENSIONS),
        tensor("logits", TensorProto.FLOAT, len(bias)),
    ]
    return onnx_model("encoder", nodes, inputs, outputs, weights)


def run(model: onnx.ModelProto, output: str, rows: list[list[int]]) -> Array:
    """An output of the encoder for these rows of ids."""
    input_ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    attention_mask = np.zeros_like(input_ids)
    for number, row in enumerate(rows):
        input_ids[number, : len(row)] = row
        attention_mask[number, : len(row)] = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Any = session.run([output], {"input_ids": input_ids, "attention_mask": attention_mask})
    return np.asarray(result[0], np.float32)


# ---------------------------------------------------------------------------------------------------------------
# The page


def write_page(tokenizer: Any, model: onnx.ModelProto, num_train: int) -> None:
    """Measures the encoder on the sentences written by hand, and writes the results into the page."""
    test = held_out()
    logits = run(model, "logits", [tokenizer.tokenize(sentence.text) for sentence in test])
    num_right = int((logits.argmax(1) == [sentence.topic for sentence in test]).sum())
    powers = np.exp(logits[0] - logits[0].max())
    answer = {  # in the order in which /generate prints keys
        "label": list(TOPICS)[int(logits[0].argmax())],
        "model_name": "text_classification",
        "model_version": "1",
        "probability": float(str(powers.max() / powers.sum())),  # as few digits as tell one FP32 from the next
    }
    page = PAGE.format(
        dimensions=DIMENSIONS,
        num_topics=len(TOPICS),
        example=test[0].text,
        answer=json.dumps(answer, separators=(",", ":")),
        accuracy=num_right / len(test),
        num_right=num_right,
        num_test=len(test),
        topics=", ".join(TOPICS),
        num_train=num_train,
        vocabulary_size=VOCABULARY_SIZE,
    )
    write(REPOSITORY / "text_classification" / "README.md", page)
    print(f"text_classification: {num_right} of {len(test)} right")


if __name__ == "__main__":
    main()
