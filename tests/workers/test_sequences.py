"""What models of a sequence batcher see and leave, through a worker's loop: sequence_batching's tensors and rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.model_config.signature import Signature
from shoal.shm import layout
from shoal.workers.loop import Loop
from shoal.workers.sequences import SequenceTensors
from shoal.workers.tensors import Array
from tests.request_headers import request_header
from tests.workers.worker_harness import Batcher, Done, PerRequest, Returning, model_config, strings, tensor_config

START, END = 1, 2
VALUES: dict[str, Any] = {"int32_false_true": [], "fp32_false_true": [], "bool_false_true": []}


def control(name: str, kind: str, data_type: str = "TYPE_INVALID", **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        "control": [{"kind": f"CONTROL_SEQUENCE_{kind}", "data_type": data_type, **VALUES, **values}],
    }


CONTROLS = [
    control("START", "START", int32_false_true=[5, 6]),
    control("END", "END", fp32_false_true=[-1.5, 1.5]),
    control("READY", "READY", bool_false_true=[False, True]),
]


def correlation(data_type: str) -> dict[str, Any]:
    return control("ID", "CORRID", data_type)


def state(data_type: str = "TYPE_FP32", dims: tuple[int, ...] = (1,), **initial: Any) -> dict[str, Any]:
    given = [{"name": "i", "data_type": data_type, "dims": list(dims), **initial}] if initial else []
    names = {"input_name": "S", "output_name": "NEXT"}
    return {**names, "data_type": data_type, "dims": list(dims), "initial_state": given}


def config(*controls: dict[str, Any], max_batch_size: int = 4, **batching: Any) -> dict[str, Any]:
    tensors = [tensor_config("X", "TYPE_FP32", [1])], [tensor_config("Y", "TYPE_FP32", [1])]
    given = {"control_input": list(controls), "state": [], "iterative_sequence": False, **batching}
    return model_config(*tensors, max_batch_size=max_batch_size, sequence_batching=given)


class Instance:
    """A worker with a model that notes what it is given, and returns that X is one more."""

    def __init__(
        self, batcher: Batcher, given: dict[str, Any], backend: type[Returning] = Returning, directory: str = ""
    ) -> None:
        self._batcher = batcher
        self._leading = [1] if given["max_batch_size"] else []
        self.seen: dict[str, Array] = {}
        self.leaves: dict[str, Array] | None = None
        tensors = SequenceTensors(given, directory)
        signature = Signature.from_config(given)
        self._loop = Loop(backend(self._run), signature, "m_0_0", batcher.memory(), tensors)

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        self.seen = {name: array.copy() for name, array in inputs.items()}
        outputs = {"Y": inputs["X"] + 1}
        if "S" in inputs:
            outputs["NEXT"] = inputs["S"] + inputs["X"] if self.leaves is None else self.leaves["NEXT"]
            if self.leaves == {}:
                del outputs["NEXT"]
        return outputs

    def run(self, *requests: tuple[int, int, int | str, float | None]) -> list[Done]:
        """A batch of requests: slot, flags, id, X; None: X has no row."""
        for index, (slot, flags, key, value) in enumerate(requests):
            data = b"" if value is None else np.float32(value).tobytes()
            tensor = ["X", 11, [*self._leading, 1] if data else [0, 1], 0, len(data)]
            header = request_header("", [tensor], [], {}, [key, flags])
            ref, span = self._batcher.raw_request(data, header)
            word = hash(key) & 0xFFFF if isinstance(key, str) else key
            item = (5, index + 1, 1, ref, span, 1, index, len(requests), 0, 0, 0, 0, 0, flags | slot + 1 << 8, word)
            self._batcher.writer.push(layout.record(*item))
        self._batcher.writer.publish()
        self._batcher.worker_bell.ring()
        self._loop.step()
        return self._batcher.done()

    def of(self, name: str) -> list[Any]:
        listed: list[Any] = self.seen[name].ravel().tolist()
        return listed


def test_a_model_is_told_of_its_sequences(batcher: Batcher) -> None:
    instance = Instance(batcher, config(*CONTROLS, correlation("TYPE_UINT64")))
    done = instance.run((0, START, 7, 1), (1, 0, 8, 2), (2, START | END, 2**63, 3))
    assert [one.outputs["Y"].tolist() for one in done] == [[[2]], [[3]], [[4]]]
    assert instance.of("START") == [6, 5, 6]
    assert instance.of("END") == [-1.5, -1.5, 1.5]
    assert instance.of("READY") == [True] * 3
    assert instance.of("ID") == [7, 8, 2**63]
    dtypes = {name: array.dtype.name for name, array in instance.seen.items()}
    assert dtypes == {"X": "float32", "START": "int32", "END": "float32", "READY": "bool", "ID": "uint64"}


@pytest.mark.parametrize("max_batch_size", [0, 4])
@pytest.mark.parametrize(
    ("data_type", "key", "seen"),
    [
        ("TYPE_INT32", 2**40 + 2**31 + 7, 7 - 2**31), ("TYPE_UINT32", 2**32 + 1, 1), ("TYPE_INT64", 2**64 - 1, -1),
        ("TYPE_STRING", "é", "é".encode()),
    ],
)  # fmt: skip
def test_ids_of_every_type(batcher: Batcher, data_type: str, key: int | str, seen: object, max_batch_size: int) -> None:
    instance = Instance(batcher, config(correlation(data_type), max_batch_size=max_batch_size), PerRequest)
    assert instance.run((0, START, key, 1))[0].status == 0
    assert instance.of("ID") == [seen]
    assert instance.seen["ID"].shape == ((1, 1) if max_batch_size else (1,))


def test_empty_rows_are_not_ready_and_not_answered(batcher: Batcher) -> None:
    instance = Instance(batcher, config(*CONTROLS, correlation("TYPE_INT64"), direct={}))
    done = instance.run((1, START, 7, 1), (3, 0, 8, 2))
    assert [(one.key, one.outputs["Y"].tolist()) for one in done] == [(1, [[2]]), (2, [[3]])]
    assert instance.of("READY") == [False, True, False, True]
    assert instance.of("START") == [5, 6, 5, 5]
    assert instance.of("ID") == [0, 7, 0, 8]
    assert len(instance.of("X")) == 4


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_request_that_cannot_be_read_leaves_those_of_other_sequences_in_their_rows(
    batcher: Batcher, lacking: int
) -> None:
    """As a program in shared memory can write one, whatever its client checks."""
    instance = Instance(batcher, config(*CONTROLS, direct={}, state=[state()]))
    instance.run((0, START, 7, 1), (1, START, 8, 10), (2, START, 9, 20))
    values = [None if slot == lacking else slot for slot in range(3)]
    done = instance.run((0, 0, 7, values[0]), (1, 0, 8, values[1]), (2, 0, 9, values[2]))
    for slot, one in enumerate(done):
        if slot == lacking:
            assert one.sentence == "a request of a sequence to model 'm' has 0 rows, must have 1"
        else:
            assert one.outputs["Y"].tolist() == [[slot + 1]]
            assert instance.of("S")[slot] == [1, 10, 20][slot]
    assert instance.of("READY") == [slot != lacking for slot in range(3)]
    assert [one.outputs["Y"].tolist() for one in instance.run((0, 0, 7, 5), (2, 0, 9, 6))] == [[[6]], [[7]]]


def test_oldest_has_no_empty_rows(batcher: Batcher) -> None:
    instance = Instance(batcher, config(*CONTROLS, oldest={}))
    instance.run((1, START, 7, 1), (3, 0, 8, 2))
    assert instance.of("X") == [1, 2]


@pytest.mark.parametrize("backend", [Returning, PerRequest])
def test_a_state_is_what_the_last_request_left(batcher: Batcher, backend: type[Returning]) -> None:
    instance = Instance(batcher, config(direct={}, state=[state()], max_batch_size=2), backend)
    instance.run((0, START, 7, 1), (1, START, 8, 10))
    instance.run((1, 0, 8, 20))  # the other row is empty, and its state stays
    instance.run((0, 0, 7, 2), (1, 0, 8, 5))
    done = instance.run((0, 0, 7, 0), (1, END, 8, 0))
    assert [set(one.outputs) for one in done] == [{"Y"}] * 2
    instance.run((0, 0, 7, 0))
    assert instance.of("S") == [3]
    instance.run((0, START, 7, 4))
    assert instance.of("S") == [0]
    instance.run((1, 0, 8, 4))
    assert instance.of("S")[-1] == 0  # it has ended
    instance.run((0, 0, 9, 4))
    assert instance.of("S")[0] == 0  # another sequence's is nobody's


def test_a_backend_hears_of_sequences_that_ended_by_themselves(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int | str] = []
    monkeypatch.setattr(Returning, "end_sequence", lambda _backend, key: told.append(key))
    instance = Instance(batcher, config(oldest={}))
    instance.run((0, START, 7, 1), (1, START, "eight", 1), (2, START, 9, 1))
    instance.run((0, START, 7, 1), (2, END, 9, 1))  # goes on; has ended as it should
    assert told == []
    instance.run((0, START | END, 10, 1), (1, START, 11, 1), (2, START, 12, 1))
    assert told == [7, "eight"]


def test_a_state_without_a_batch_dimension_and_one_that_grows(batcher: Batcher) -> None:
    instance = Instance(batcher, config(max_batch_size=0, state=[state(dims=(-1,))]))
    instance.leaves = {"NEXT": np.arange(3, dtype=np.float32)}
    instance.run((0, START, 7, 1))
    assert instance.of("S") == [0]
    instance.run((0, 0, 7, 1))
    assert instance.of("S") == [0, 1, 2]
    instance.leaves = {}  # what the model does not answer stays
    instance.run((0, 0, 7, 1))
    instance.run((0, 0, 7, 1))
    assert instance.of("S") == [0, 1, 2]


@pytest.mark.parametrize("array", [np.zeros((1, 2), np.float32), np.zeros((1, 1), np.int32)])
def test_a_state_is_what_the_configuration_says(batcher: Batcher, array: Array) -> None:
    instance = Instance(batcher, config(state=[state()]))
    instance.leaves = {"NEXT": array}
    (done,) = instance.run((0, START, 7, 1))
    assert done.sentence == (
        f"model 'm' returned the state 'NEXT' as {array.dtype} of shape [1,{array.shape[1]}], expected FP32 of shape "
        "[1,1]"
    )


def tensors(directory: Path, **given: Any) -> Array:
    (directory / "1").mkdir(exist_ok=True)
    (directory / "initial_state").mkdir(exist_ok=True)
    (directory / "initial_state" / "file").write_bytes(given.pop("data", b""))
    made = SequenceTensors(config(state=[state(**given)]), str(directory / "1"))
    return made.states[0].initial


def test_initial_states(tmp_path: Path) -> None:
    assert tensors(tmp_path, dims=(2,)).tolist() == [[0, 0]]
    assert tensors(tmp_path, dims=(2,), zero_data=True).tolist() == [[0, 0]]
    numbers = np.array([1, 2, 3], np.float32)
    assert tensors(tmp_path, dims=(2,), data_file="file", data=numbers.tobytes()).tolist() == [[1, 2]]
    assert tensors(tmp_path, data_type="TYPE_STRING", dims=(2,)).tolist() == [[b"", b""]]
    two = strings(b"a", b"bc")
    assert tensors(tmp_path, data_type="TYPE_STRING", dims=(2,), data_file="file", data=two).tolist() == [[b"a", b"bc"]]


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("none", InternalError, "failed to open text file for read .*none: No such file or directory"),
        ("file", InvalidArgumentError, "initial_state setting expects 4 bytes .* file only has 3 bytes"),
        ("../1", InvalidArgumentError, "is outside directory 'initial_state' of the model"),
    ],
)
def test_initial_states_that_cannot_be_read(tmp_path: Path, name: str, kind: type[ShoalError], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        tensors(tmp_path, data_file=name, data=b"abc")
