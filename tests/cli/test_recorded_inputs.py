"""shoal/cli/recorded_inputs.py: a recording has inputs as the backend got them, a client sends them as it did."""

from pathlib import Path

from shoal.cli.recorded_inputs import recorded_inputs
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.model_config.signature import Signature
from shoal.recorder.recorded import RecordedRequest, Recording
from shoal.recorder.segment_file import file_head, pack_frame
from tests.recorder.entries import made


def request_in(folder: Path) -> RecordedRequest:
    """One whose input IN is FP32 [1, 2]."""
    (folder / "one.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    (found,) = Recording(folder)
    return found


def signature(text: str) -> Signature:
    return Signature.from_config(normalise(pbtxt.parse(f'name: "m" backend: "identity" {text}', Path("config.pbtxt"))))


def test_a_reshape_is_taken_back(tmp_path: Path) -> None:
    request = request_in(tmp_path)
    squared = signature('max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: [2, 1] reshape { shape: 2 } }')
    assert recorded_inputs(request, squared)["IN"].tolist() == [[[1], [2]]]
    bare = signature('input { name: "IN" data_type: TYPE_FP32 dims: 2 reshape { shape: [1, 2] } }')
    assert recorded_inputs(request, bare)["IN"].tolist() == [1, 2]
    plain = signature('max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: 2 }')
    for known in (plain, None):
        assert recorded_inputs(request, known)["IN"].tolist() == [[1, 2]]
