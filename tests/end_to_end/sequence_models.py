"""The models of the tests of sequences: each adds what comes in a sequence, in another way."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save

CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] } }
"""
INTEGER_ID = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } }'
STRING_ID = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
ZERO = 'state { input_name: "SUM" output_name: "NEXT_SUM" data_type: TYPE_INT32 dims: [1] }'
TEN = ZERO.replace(
    "dims: [1]", 'dims: [1] initial_state { name: "ten" data_type: TYPE_INT32 dims: [1] data_file: "10" }'
)
LONG = "max_sequence_idle_microseconds: 3600000000"

#: Name → its class in model.py, or "" where it is an ONNX file; sequence_batching; max_batch_size.
MODELS = {
    "direct": ("ByRow", f"direct {{}} {LONG} {CONTROLS} {INTEGER_ID}", 4),
    "oldest": ("ByTensors", f"oldest {{ max_candidate_sequences: 8 }} {LONG} {CONTROLS} {STRING_ID}", 4),
    "plain": ("ByFlags", LONG, 4),
    "brief": ("Counted", "max_sequence_idle_microseconds: 200000", 1),
    "state": ("ByState", f"oldest {{}} {LONG} {TEN}", 4),
    "onnx": ("", f"direct {{}} {LONG} {ZERO}", 4),
    "onnx_ten": ("", f"oldest {{}} {LONG} {TEN}", 4),
    "again": ("Again", "oldest {} iterative_sequence: true", 4),
    "stream": ("Stream", f"oldest {{}} {LONG}", 4),
}
#: Those whose state the server keeps.
STATES = ("state", "onnx", "onnx_ten")
TENSORS = 'input { name: "X" data_type: TYPE_INT32 dims: [1] } output { name: "Y" data_type: TYPE_INT32 dims: [1] }'
TOLD = 'output { name: "TOLD" data_type: TYPE_STRING dims: [1] }'
MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils


def answer(total, told, *more):
    told = pb_utils.Tensor("TOLD", np.array([[told.encode()]], np.object_))
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 1), total, np.int32)), told, *more])


class Sums:
    def initialize(self, args):
        self.sums, self.told = {}, []

    def execute(self, requests):
        given = [{each.name(): each.as_numpy()[0, 0] for each in request.inputs()} for request in requests]
        return [self.step(row, *both) for row, both in enumerate(zip(requests, given))]

    def add(self, key, given, is_first):
        self.sums[key] = given["X"] + (0 if is_first else self.sums[key])
        return self.sums[key]


class ByRow(Sums):
    """As a model must that knows nothing of ids: what a row had last time is its own."""

    def step(self, row, request, given):
        if not given["READY"]:
            assert (given["START"], given["END"], given["ID"], request.flags()) == (0, 0, 0, 0)
            return answer(0, "nobody hears this")
        return answer(self.add(row, given, given["START"]), f"{row} {given['ID']} {given['END']:g}")


class ByTensors(Sums):
    def step(self, row, request, given):
        assert given["READY"]
        total = self.add(given["ID"], given, given["START"])
        if given["END"]:
            del self.sums[given["ID"]]
        return answer(total, given["ID"].decode())


class ByFlags(Sums):
    def step(self, row, request, given):
        if not request.correlation_id():
            return answer(0, "an empty row, which no tensor says")
        total = self.add(request.correlation_id(), given, request.flags() & 1)
        return answer(total, f"{request.correlation_id()!r} {request.flags()}")


class Counted(ByFlags):
    """Tells how many sequences it knows of."""

    def step(self, row, request, given):
        total = self.add(request.correlation_id(), given, request.flags() & 1)
        return answer(total, str(len(self.sums)))

    def end_sequence(self, key):
        del self.sums[key]


class ByState(Sums):
    def step(self, row, request, given):
        total = given["X"] + given["SUM"]
        return answer(total, "", pb_utils.Tensor("NEXT_SUM", np.full((1, 1), total, np.int32)))


class Again(Sums):
    """As often as X says."""

    def step(self, row, request, given):
        self.told.append(str(request.flags()))
        if len(self.told) < given["X"]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        told, self.told = self.told, []
        return answer(given["X"], " ".join(told))


class Stream(Sums):
    """As many responses as X says, and one that says the sum."""

    def execute(self, requests):
        for request in requests:
            sender, key = request.get_response_sender(), request.correlation_id()
            given = {"X": int(request.inputs()[0].as_numpy()[0, 0])}
            total = self.add(key, given, request.flags() & 1)
            for each in range(given["X"]):
                sender.send(answer(each, "part"))
            sender.send(answer(total, "sum"), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


def write_models(repository: Path, *names: str, num_slots: int = 0, idle_us: int = 0) -> None:
    """These of the models, or all of them; with slots for so many sequences, which may be idle for so long."""
    for name in names or MODELS:
        kind, batching, max_batch_size = MODELS[name]
        if num_slots:
            batching = batching.replace("oldest {}", f"oldest {{ max_candidate_sequences: {num_slots} }}")
            batching = batching.replace(LONG, f"max_sequence_idle_microseconds: {idle_us}")
            max_batch_size = max_batch_size if "oldest" in batching else num_slots
        directory = repository / name
        (directory / "1").mkdir(parents=True)
        tensors = TENSORS
        if kind:
            (directory / "1" / "model.py").write_text(f"{MODEL}\n\nTritonPythonModel = {kind}\n")
            tensors += TOLD
        else:
            write_onnx(directory / "1" / "model.onnx")
        policy = "model_transaction_policy { decoupled: true }" if name == "stream" else ""
        if "data_file" in batching:
            (directory / "initial_state").mkdir()
            (directory / "initial_state" / "10").write_bytes(np.int32(10).tobytes())
        (directory / "config.pbtxt").write_text(
            f"""backend: "{"python" if kind else "onnxruntime"}" max_batch_size: {max_batch_size}
            instance_group {{ count: 1 kind: KIND_CPU }} {policy}
            {tensors} sequence_batching {{ {batching} }}"""
        )


def write_onnx(path: Path) -> None:
    """Y = NEXT_SUM = X + SUM."""
    names = ("X", "SUM", "Y", "NEXT_SUM")
    x, total, y, following = (helper.make_tensor_value_info(each, TensorProto.INT32, ["N", 1]) for each in names)
    nodes = [helper.make_node("Add", ["X", "SUM"], ["Y"]), helper.make_node("Identity", ["Y"], ["NEXT_SUM"])]
    graph = helper.make_graph(nodes, "sum", [x, total], [y, following])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
