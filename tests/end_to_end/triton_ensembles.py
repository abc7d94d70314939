"""Models and ensembles for what Triton's clients rely on in the corners: outputs left out, last flags, reshapes."""

from pathlib import Path
from textwrap import dedent

from tests.end_to_end.ensemble_models import step, tensor, write_ensemble, write_model
from tests.end_to_end.repositories import add_model

HEAD = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def given(request, name="X"):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def response(**outputs):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, np.asarray(array, np.float32)) for name, array in outputs.items()]
    )


FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
"""
COUPLED = "model_transaction_policy {}"
DECOUPLED = "model_transaction_policy { decoupled: true }"


def write(repository: Path, name: str, body: str, inputs: str = "X", outputs: str = "Y", more: str = "") -> None:
    """A Python model that batches, of FP32 tensors with names of one letter; `body` is its class and its `execute`.

    An input in lower case is optional.
    """
    given = ", ".join(
        tensor(each).replace("}", "optional: true }") if each.islower() else tensor(each) for each in inputs
    )
    config = f'backend: "python" max_batch_size: 8 input [{given}] output [{", ".join(map(tensor, outputs))}] {more}'
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    code = dedent(HEAD) + "\n\nclass TritonPythonModel:\n    def execute(self, requests):\n"
    body = "".join(f"        {line}\n" for line in dedent(body).strip().splitlines())
    (repository / name / "1" / "model.py").write_text(code + body)


def write_reshaping(repository: Path, name: str, model: str, shape: str) -> None:
    """An ensemble of one model, whose input and output have these dims and this reshape."""
    config = f"""
        platform: "ensemble"
        max_batch_size: 8
        input [{{ name: "X" data_type: TYPE_FP32 {shape} }}]
        output [{{ name: "Y" data_type: TYPE_FP32 {shape} }}]
        ensemble_scheduling {{ step [{step(model, {"X": "X"}, {"Y": "Y"})}] }}
    """
    add_model(repository, name, config)


def write_all(repository: Path) -> None:
    """Everything that the tests of ensembles' answers ask."""
    write_model(repository, "double", "return given(request) * 2")
    write_model(repository, "add", 'return given(request, "A") + given(request, "B")')
    write(
        repository,
        "partial",
        "return [response(Y=given(request) + 1) for request in requests]",
        outputs="YZ",
        more=COUPLED,
    )
    write(
        repository,
        "either",
        """
        found = [[given(request, name) for name in "ab"] for request in requests]
        return [response(Y=(0 if a is None else a) + (1000 if b is None else b)) for a, b in found]
        """,
        inputs="ab",
    )
    partial = step("partial", {"X": "X"}, {"Y": "y", "Z": "z"})
    write_ensemble(repository, "partly", step("partial", {"X": "X"}, {"Y": "Y", "Z": "Z"}), outputs=("Y", "Z"))
    write_ensemble(repository, "going_on", partial, step("either", {"a": "y", "b": "z"}, {"Y": "Y"}))
    write_ensemble(repository, "lacking", partial, step("add", {"A": "y", "B": "z"}, {"Y": "Y"}))
    more = 'parameters={"sequence_end": True, "mood": "gay"}'
    said = "[pb_utils.InferenceResponse([pb_utils.Tensor('Y', given(request))], {}) for request in requests]"
    write(repository, "says_end", f"return {said.format(more)}")
    write_ensemble(repository, "whole", step("double", {"X": "X"}, {"Y": "Y"}))
    write_ensemble(repository, "whole_again", step("whole", {"X": "X"}, {"Y": "Y"}))
    write_ensemble(
        repository, "ended", step("double", {"X": "X"}, {"Y": "d"}), step("says_end", {"X": "d"}, {"Y": "Y"})
    )
    write(
        repository,
        "held",
        """
        while not all(request.is_cancelled() for request in requests):
            time.sleep(0.01)  # Triton's API can be asked, not waited on
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("let go")) for _ in requests]
        """,
        more="dynamic_batching { default_queue_policy { max_queue_size: 1 } }",
    )
    write_ensemble(repository, "crowded", step("double", {"X": "X"}, {"Y": "d"}), step("held", {"X": "d"}, {"Y": "Y"}))
    # Clients see rows of four, the model two by two; and the other way round.
    square = '[{{ name: "{}" data_type: TYPE_FP32 dims: [2, 2] }}]'
    more = f'backend: "python" max_batch_size: 8 input {square.format("X")} output {square.format("Y")}'
    write(repository, "squares", "return [response(Y=given(request).transpose(0, 2, 1)) for request in requests]")
    (repository / "squares" / "config.pbtxt").write_text(more)
    write_reshaping(repository, "rows", "squares", "dims: [4] reshape { shape: [2, 2] }")
    write_reshaping(repository, "rows_again", "rows", "dims: [4, 1] reshape { shape: [4] }")
    write(repository, "halves", "return [response(Y=given(request) / 2) for request in requests]")
    scalar = '[{{ name: "{}" data_type: TYPE_FP32 dims: [1] reshape {{ shape: [] }} }}]'
    more = f'backend: "python" max_batch_size: 8 input {scalar.format("X")} output {scalar.format("Y")}'
    (repository / "halves" / "config.pbtxt").write_text(more)
    write_reshaping(repository, "columns", "halves", "dims: [1, 1] reshape { shape: [1] }")
    # Answers as often as its first number says, its last answer with the last flag; odd ones lack Z.
    write(
        repository,
        "count",
        """
        for request in requests:
            array, sender = given(request), request.get_response_sender()
            last = int(array[0, 0]) - 1
            for number in range(last + 1):
                outputs = {"Y": array + number} if number % 2 else {"Y": array + number, "Z": array}
                sender.send(response(**outputs), flags=FINAL * (number == last))
            if last < 0:
                sender.send(flags=FINAL)
        """,
        outputs="YZ",
        more=DECOUPLED,
    )
    count = step("count", {"X": "X"}, {"Y": "y", "Z": "z"})
    write_ensemble(repository, "counting", step("count", {"X": "X"}, {"Y": "Y", "Z": "Z"}), outputs=("Y", "Z"))
    write_ensemble(repository, "counting_on", count, step("either", {"a": "y", "b": "z"}, {"Y": "Y"}))
    write_ensemble(
        repository, "nested", step("counting_on", {"X": "X"}, {"Y": "n"}), step("double", {"X": "n"}, {"Y": "Y"})
    )


#: Ensembles to load; their models come with them.
ENSEMBLES = (
    "partly",
    "going_on",
    "lacking",
    "counting",
    "counting_on",
    "nested",
    "whole",
    "whole_again",
    "ended",
    "crowded",
    "rows",
    "rows_again",
    "columns",
)
