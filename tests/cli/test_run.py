"""`shoal run`: one request from the shell, printed for a person or as JSON, and every mistake said."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from shoal.cli import main
from shoal.cli.run_inputs import read_requests
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.recorder.entry import Outcome
from shoal.recorder.segment_file import file_head, pack_frame
from tests.end_to_end.command_line import SHOAL
from tests.recorder.entries import made
from tests.testing.models import DECOUPLED, DOUBLE, SEQUENCES, SUMS, write_identity, write_python

SAMPLES = Path(__file__).parents[2] / "model_repository"
TEXT = """
input [ { name: "X" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["run", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    """A model of two floats a row."""
    write_identity(tmp_path)
    return tmp_path / "echo"


def test_the_answer_is_printed_for_a_person(capsys: pytest.CaptureFixture[str], echo: Path) -> None:
    assert run(capsys, echo, "--input", "X=[[1.5,2],[3,4]]") == (0, "Y  FP32 [2, 2]\n  [[1.5 2. ]\n   [3.  4. ]]\n", "")


def test_the_answer_is_printed_for_a_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        said = json_of(requests[0].parameters())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x_of(requests[0]).as_numpy())], parameters=said)]


def json_of(text):
    import json
    return json.loads(text)
"""
    write_python(tmp_path, "said", code)
    parameters = ["--parameter", "n=3", "--parameter", "name=cod", "--parameter", "deep=true"]
    code_, printed, _ = run(capsys, tmp_path / "said", "--input", "X=[1,2]", "--json", *parameters)
    assert code_ == 0
    assert json.loads(printed) == {
        "model_name": "said",
        "model_version": "1",
        "parameters": {"n": 3, "name": "cod", "deep": True},
        "outputs": [{"name": "Y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    }


def test_every_response_of_a_decoupled_model_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(answer(x_of(request).as_numpy()))
            sender.send(answer(-x_of(request).as_numpy()), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write_python(tmp_path, "twice", code, DECOUPLED)
    assert (
        run(capsys, tmp_path / "twice", "--sample", "ones")[1] == "Y  FP32 [2]\n  [1. 1.]\nY  FP32 [2]\n  [-1. -1.]\n"
    )


def test_a_model_may_call_those_that_are_loaded_beside_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return [answer(y_of(asked("double", x_of(request)).exec())) for request in requests]
"""
    write_python(tmp_path, "double", DOUBLE)
    write_python(tmp_path, "caller", code)
    sample = ("--sample", "ones")
    assert run(capsys, tmp_path / "caller", "--load", "double", *sample)[1] == "Y  FP32 [1, 2]\n  [[2. 2.]]\n"
    failed, _, complaint = run(capsys, tmp_path / "caller", *sample)
    assert failed == 2
    assert "Model 'double' is not ready" in complaint
    assert complaint.endswith("\nWhat the model calls is loaded from beside it: --load <model>.\n")


def test_inputs_may_follow_options(capsys: pytest.CaptureFixture[str], echo: Path) -> None:
    assert run(capsys, echo, "--output", "Y", "X=[1,2]") == (0, "Y  FP32 [1, 2]\n  [[1. 2.]]\n", "")


def test_a_version_and_an_output_are_chosen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_identity(tmp_path)
    (tmp_path / "echo" / "3").mkdir()
    chosen = ("--version", 3, "--output", "Y", "--sample", "zeros", "--json")
    assert json.loads(run(capsys, tmp_path / "echo", *chosen)[1])["model_version"] == "3"
    failed, _, complaint = run(capsys, tmp_path / "echo", "--version", 2, "--sample", "zeros")
    assert (failed, "version 2 is not found" in complaint) == (2, True)


def test_repeating_says_how_long_it_took(capsys: pytest.CaptureFixture[str], echo: Path) -> None:
    code, printed, told = run(capsys, echo, "--sample", "zeros", "--repeat", 5)
    assert (code, printed.count("Y  FP32")) == (0, 1)
    assert told.startswith("5 times: fastest ")


def test_a_model_s_error_is_told_and_its_traceback_where_it_is_wanted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_python(tmp_path, "raises", "\n    def execute(self, requests):\n        raise KeyError('no fish')\n")
    code, printed, complaint = run(capsys, tmp_path / "raises", "--sample", "ones")
    assert (code, printed) == (2, "")
    assert complaint.startswith("Internal: Failed to process the request(s) for model 'raises_0', message: KeyError:")
    code, printed, complaint = run(capsys, tmp_path / "raises", "--sample", "ones", "--traceback", "--json")
    assert (code, json.loads(printed)) == (2, {"error": "The model has raised KeyError: 'no fish'"})
    head, frame, *_ = complaint.splitlines()
    assert head == "Traceback (most recent call last):"
    assert frame.endswith("in execute")
    assert str(tmp_path) in frame


def test_a_model_s_error_is_printed_once(tmp_path: Path) -> None:
    write_python(tmp_path, "raises", "\n    def execute(self, requests):\n        raise KeyError('no fish')\n")
    command = [*SHOAL, "run", str(tmp_path / "raises"), "--sample", "ones"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("no fish")) == (2, "", 1), done.stderr


def test_a_model_without_inputs_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_python(tmp_path, "silent", DOUBLE)
    (tmp_path / "silent" / "config.pbtxt").write_text('backend: "python"')
    _, _, complaint = run(capsys, tmp_path / "silent", "--input", "X=1")
    assert complaint.startswith("'X' is no input of model 'silent', which has no inputs: its configuration names none.")


def test_an_ensemble_runs_with_the_models_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = ("--input", "text=will it rain in the mountains tomorrow", "--output", "label")
    code, printed, _ = run(capsys, SAMPLES / "text_ensemble", *text)
    assert code == 0
    assert printed.startswith("label  BYTES [1, 1]\n  [['weather']]\n")


def test_the_requests_of_a_file_are_one_sequence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_python(tmp_path, "sums", SUMS, SEQUENCES)
    (tmp_path / "data.json").write_text('{"data": [{"X": [1, 2]}, {"X": [3, 4]}, {"X": [5, 6]}]}')
    data = ("--data", tmp_path / "data.json")
    assert values(capsys, tmp_path / "sums", *data) == [[1, 2], [4, 6], [9, 12]]
    own = ("--parameter", "sequence_id=7", "--parameter", "sequence_start=true")
    assert values(capsys, tmp_path / "sums", *data, *own) == [[1, 2], [3, 4], [5, 6]], "each begins anew"


def test_what_the_server_heeds_is_no_parameter_of_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        [request] = requests
        assert request.parameters() == "{}"
        return [answer(x_of(request).as_numpy() * request.timeout())]
"""
    write_python(tmp_path, "told", code)
    assert values(capsys, tmp_path / "told", "--sample", "ones", "--parameter", "timeout=5") == [[5, 5]]


# -- where inputs come from ---------------------------------------------------------------------------------------


def values(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[object]:
    """The data of the only output, request by request."""
    code, printed, complaint = run(capsys, *arguments, "--json")
    assert code == 0, complaint
    return [json.loads(line)["outputs"][0]["data"] for line in printed.splitlines()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("[[1,2],[3,4]]", [1, 2, 3, 4]),
        ("[1,2]", [1, 2]),  # the batch dimension is missing
        ("[1,2,3,4]", [1, 2, 3, 4]),  # flat
        ("@a.json", [5, 6]),
        ("@a.npy", [7, 8]),
    ],
)
def test_a_tensor_from_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, echo: Path, value: str, expected: list[int]
) -> None:
    monkeypatch.chdir(echo.parent)
    Path("a.json").write_text("[[5,6]]")
    np.save("a.npy", np.array([7, 8], np.float32))
    assert values(capsys, echo, "--input", f"X={value}") == [expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hello", ["hello"]),
        ("12", ["12"]),
        ('["a", "b c"]', ["a", "b c"]),
        ('"quoted"', ["quoted"]),
        ("@picture", ["PNG"]),
    ],
)
def test_a_text_from_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, expected: list[str]
) -> None:
    (tmp_path / "texts" / "1").mkdir(parents=True)
    (tmp_path / "texts" / "config.pbtxt").write_text(f'backend: "identity" {TEXT}')
    (tmp_path / "picture").write_bytes(b"PNG")
    monkeypatch.chdir(tmp_path)
    assert values(capsys, "texts", "--input", f"X={value}") == [expected]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"inputs": [{"name": "X", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]}, [[1, 2, 3, 4]]),
        ({"data": [{"X": [1, 2]}, {"X": {"content": [3, 4, 5, 6], "shape": [2, 2]}}]}, [[1, 2], [3, 4, 5, 6]]),
        ({"data": [[{"X": [1, 2]}], [{"X": {"b64": "AACAPwAAAEA="}}]]}, [[1, 2], [1, 2]]),
        ({"X": [[1, 2]]}, [[1, 2]]),
    ],
    ids=["infer", "perf_analyzer", "sequences", "plain"],
)
def test_requests_from_a_file(
    capsys: pytest.CaptureFixture[str], echo: Path, document: object, expected: list[list[int]]
) -> None:
    (echo.parent / "data.json").write_text(json.dumps(document))
    assert values(capsys, echo, "--data", echo.parent / "data.json") == expected


def test_requests_from_a_recording(capsys: pytest.CaptureFixture[str], echo: Path) -> None:
    entries = [
        made(key=1, model="echo", tensor="X"), made(key=2, model="other", tensor="X"),
        made(key=3, model="echo", tensor="X", outcome=Outcome.FAILED, status=2),
    ]  # fmt: skip
    file = echo.parent / "hour.shoalrec"
    file.write_bytes(file_head() + pack_frame(entries))
    assert values(capsys, echo, "--data", file) == [[1, 2]]
    assert values(capsys, echo, "--data", echo.parent) == [[1, 2]]
    file.write_bytes(file_head() + pack_frame(entries[1:]))
    code, _, complaint = run(capsys, echo, "--data", file)
    assert (code, "has no answered request to model 'echo'" in complaint) == (1, True)


def test_a_sample_request_of_the_repository_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, SAMPLES / "digits", "--data", SAMPLES / "digits" / "request.json")
    assert (code, printed.splitlines()[0]) == (0, "probabilities  FP32 [1, 10]")


@pytest.mark.parametrize("sample", ["zeros", "ones", "random"])
def test_every_kind_of_tensor_is_made_up(capsys: pytest.CaptureFixture[str], tmp_path: Path, sample: str) -> None:
    kinds = ["BOOL", "UINT8", "INT64", "FP16", "FP32", "BF16", "STRING"]
    tensors = [
        f'{side} [ {{ name: "{side}{kind}" data_type: TYPE_{kind} dims: [ 2 ] }} ]'
        for side in ("input", "output")
        for kind in kinds
    ]
    (tmp_path / "all" / "1").mkdir(parents=True)
    (tmp_path / "all" / "config.pbtxt").write_text('backend: "identity"\n' + "\n".join(tensors))
    code, printed, complaint = run(capsys, tmp_path / "all", "--sample", sample, "--json")
    assert code == 0, complaint
    assert run(capsys, tmp_path / "all", "--sample", sample, "--json")[1] == printed, "the same every time"
    assert len(json.loads(printed)["outputs"]) == len(kinds)


def test_bf16_is_given_as_numbers_and_sent_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = """
    backend: "identity" max_batch_size: 8
    input { name: "X" data_type: TYPE_BF16 dims: [ 2 ] }
    output { name: "Y" data_type: TYPE_BF16 dims: [ 2 ] }
    """
    (tmp_path / "bf" / "1").mkdir(parents=True)
    (tmp_path / "bf" / "config.pbtxt").write_text(config)
    assert run(capsys, tmp_path / "bf", "X=[1.5,-2]") == (0, "Y  BF16 [1, 2]\n  [[ 1.5 -2. ]]\n", "")
    assert json.loads(run(capsys, tmp_path / "bf", "--sample", "ones", "--json")[1])["outputs"][0]["data"] == [1, 1]
    model = normalise(pbtxt.parse(f'name: "bf" {config}', tmp_path))
    np.save(tmp_path / "x.npy", np.array([1.5, -2], np.float32))
    for text in ("[1.5,-2]", f"@{tmp_path}/x.npy"):
        (request,) = read_requests(model, [("X", text)], None, None)
        assert request.inputs["X"].tolist() == [[0x3FC0, 0xC000]]  # what shoal.Client takes for BF16
    (tmp_path / "b64.json").write_text('{"X": {"b64": "wD8AwA=="}}')
    (request,) = read_requests(model, [], tmp_path / "b64.json", None)
    assert request.inputs["X"].tolist() == [[0x3FC0, 0xC000]]
