"""`shoal replay`: where it asks, and mistakes that are said before anything is asked."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main, replay
from shoal.cli.operate import client_at
from shoal.cli.replay_comparison import Answer
from shoal.cli.replay_targets import LocalModels, RunningServer
from shoal.client.remote_grpc import GrpcClient
from shoal.client.request_arguments import RequestArguments
from shoal.errors import ConnectionLostError
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise
from shoal.recorder.recorded import Recording
from shoal.recorder.segment_file import file_head, pack_frame
from tests.recorder.entries import made


@pytest.fixture
def recording(tmp_path: Path) -> str:
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    return str(tmp_path)


def test_without_a_server_it_says_what_to_type(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{deaf.getsockname()[1]}"
        assert main(["replay", recording, "--against", place]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"no server is found at {place}: Connection refused\n")
    assert "  shoal replay … --against http://<host>:<port> " in said


def test_no_request_waits_longer_than_the_timeout() -> None:
    """Over gRPC --timeout limits each request that has no timeout of its own."""
    client = client_at("grpc://127.0.0.1:1", {}, 0.25)
    assert isinstance(client, GrpcClient)
    with client:
        assert client._limits(RequestArguments("m", {})) == {"client_timeout": 0.25}
        assert client._limits(RequestArguments("m", {}, timeout=3.0)) == {"client_timeout": 3.0}


def test_where_a_client_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"SHOAL_URL": "gpu-1:8000"}
    assert client_at(None, {})._place is None
    assert client_at(None, {"SHOAL_URL": ""})._place is None
    assert client_at(None, environ)._place == "http://gpu-1:8000"
    assert client_at("grpc://gpu-2:8001", environ)._place == "grpc://gpu-2:8001"
    assert client_at("/run/shoal/8000.sock", environ)._place == "/run/shoal/8000.sock"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.sock").touch()
    assert client_at("here.sock", environ)._place == "here.sock"


@pytest.mark.parametrize(("scheme", "lacking"), [("grpc", "grpc"), ("http", "geventhttpclient")])
def test_without_what_tritonclient_needs_it_says_what_to_install(
    scheme: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tritonclient alone, as `scripts/serve` installs it, raises errors of its own."""
    for name in [name for name in sys.modules if name.startswith(f"tritonclient.{scheme}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lacking, None)
    with pytest.raises(ConnectionLostError, match=rf"needs pip install 'tritonclient\[{scheme}\]', which is not there"):
        client_at(f"{scheme}://localhost:8001", {})


def test_a_server_that_is_lost_is_not_asked_at_the_later_times(tmp_path: Path) -> None:
    entries = [made(key=number, start_ns=number * 20 * 10**9, end_ns=number * 20 * 10**9 + 1) for number in (1, 2)]
    (tmp_path / "two.shoalrec").write_bytes(file_head() + pack_frame(entries))
    asked = []

    class Lost:
        def model_config(self, *_: object, **__: object) -> dict[str, Any]:
            return {}

        def infer(self, model: str, *_: object, **__: object) -> None:
            asked.append(model)
            raise ConnectionLostError("the server is gone")

    server: Any = Lost()
    with pytest.raises(ConnectionLostError):
        RunningServer(server, None).replay(list(Recording(tmp_path)), 1.0)
    assert asked == ["m"]


def test_a_report_for_which_the_disk_has_no_room_costs_no_figures(
    recording: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_ask_locally", lambda requests, *_, **__: ([Answer() for _ in requests], 0))
    assert main(["replay", recording, "--repo", recording, "--report", "/dev/full"]) == 1
    printed = capsys.readouterr()
    assert "1 requests" in printed.out
    assert printed.err.startswith("'/dev/full' cannot be written: No space left on device\nUsage: shoal replay")


IDENTITY = """
name: "m" backend: "identity" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }
"""


@pytest.mark.parametrize("flags", [[], ["--exact-batches"]])
def test_only_recorded_batches_count_as_not_formed_again(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two requests that are refused now, one was executed; a request to an ensemble and one that a cache has
    answered were not."""
    executed = made(key=1, tensor="GONE", instance=7 << 32, worker=7, batch=1, num_requests=1)
    folder, repo = tmp_path / "recorded", tmp_path / "models"
    folder.mkdir()
    (folder / "two.shoalrec").write_bytes(file_head() + pack_frame([executed, made(key=2, tensor="GONE")]))
    (repo / "m" / "1").mkdir(parents=True)
    (repo / "m" / "config.pbtxt").write_text(IDENTITY)
    main(["replay", str(folder), "--repo", str(repo), "--json", *flags])
    told = json.loads(capsys.readouterr().out)
    assert (told["requests"], told["failed"]) == (2, 2)
    assert told["batches_not_as_recorded"] == len(flags)


def test_each_request_of_a_batch_takes_as_long_as_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [0]
    monkeypatch.setattr("shoal.cli.replay_targets.time.monotonic_ns", lambda: now_ns[0])

    class Batch:
        def results(self) -> list[Any]:
            now_ns[0] = 5  # once: the second request is answered with the first
            return []

    class Local:
        batches = ()

        def config(self, *_: object) -> dict[str, Any]:
            return normalise(pbtxt.parse(IDENTITY, Path("config.pbtxt")))

        def submit(self, *_: object, **__: object) -> Batch:
            return Batch()

    (tmp_path / "two.shoalrec").write_bytes(file_head() + pack_frame([made(key=1), made(key=2)]))
    server: Any = Local()
    answers = LocalModels(server, None).replay_batch(list(Recording(tmp_path)))
    assert [each.time_ns for each in answers] == [5, 5]
