"""Small models for the tests of shoal.testing, written into a repository of the test's own."""

from pathlib import Path

IMPORTS = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
#: For bodies of execute that call `answer(request, array)`, `x_of(request)` and `ask(model, tensor)`.
WORDS = """
def x_of(request):
    return pb_utils.get_input_tensor_by_name(request, "X")


def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])


def asked(model, tensor):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[tensor])


def y_of(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
"""


def write_python(repository: Path, name: str, code: str, config: str = "max_batch_size: 8") -> Path:
    """A model with X and Y, two floats each; `code` is that of its class."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "python"\n{config}\n{TENSORS}')
    (version / "model.py").write_text(f"{IMPORTS}{WORDS}\n\nclass TritonPythonModel:\n{code}")
    return version


def write_identity(repository: Path, name: str = "echo", config: str = "max_batch_size: 8") -> None:
    """A model that answers with its input; without a file."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "identity"\n{config}\n{TENSORS}')


DOUBLE = """
    def execute(self, requests):
        return [answer(2 * x_of(request).as_numpy()) for request in requests]
"""
DELAYED = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 1000 }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
#: A model that adds up the tensors of a sequence, in an implicit state.
SUMS = """
    def execute(self, requests):
        responses = []
        for request in requests:
            start, before = (pb_utils.get_input_tensor_by_name(request, name) for name in ("START", "TOTAL_IN"))
            total = x_of(request).as_numpy() + (0 if start.as_numpy().any() else before.as_numpy())
            outputs = [pb_utils.Tensor(name, total) for name in ("Y", "TOTAL_OUT")]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
SEQUENCES = """max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]
  state [ { input_name: "TOTAL_IN" output_name: "TOTAL_OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
}"""
