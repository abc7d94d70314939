"""A running server operated from the shell: `shoal models`, `load`, `unload` and `scale`."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc

from tests.end_to_end.command_line import shoal
from tests.end_to_end.server import SAMPLES, Server, launch, only, serving_to_the_end


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two of the samples under explicit control, one of them loaded."""
    repository = tmp_path_factory.mktemp("repository")
    for model in ("digits", "simple"):
        shutil.copytree(SAMPLES / model, repository / model)
    with serving_to_the_end(repository, "--model-control-mode=explicit", "--load-model=digits") as server:
        yield server


def rows(server: Server) -> list[list[str]]:
    """The lines of `shoal models`, without the heading."""
    code, printed, complaint = shoal(server, "models")
    assert (code, complaint) == (0, "")
    heading, *lines = printed.splitlines()
    assert heading.split() == ["NAME", "VERSION", "STATE", "INSTANCES", "REASON"]
    return [line.split() for line in lines]


def test_models_are_listed_loaded_and_unloaded(operated: Server) -> None:
    assert rows(operated) == [["digits", "1", "READY", "1/1"], ["simple", "-", "-", "-"]]
    code, printed, complaint = shoal(operated, "load", "simple")
    assert (code, printed.splitlines()[1].split(), complaint) == (0, ["simple", "1", "READY", "1/1"], "")
    assert ["simple", "1", "READY", "1/1"] in rows(operated)
    code, printed, complaint = shoal(operated, "unload", "simple")
    assert (code, complaint) == (0, "")
    assert printed.splitlines()[1].split()[:3] == ["simple", "1", "UNAVAILABLE"]


def test_the_verbs_that_the_start_page_shows_change_what_is_served(operated: Server) -> None:
    (verbs,) = re.findall(
        r"```sh\n(shoal models\n.*?)```", (SAMPLES.parent / "docs" / "start.md").read_text(), re.DOTALL
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SHOAL_URL": f"http://{operated.url}"}
    run = subprocess.run(["sh", "-ec", verbs], env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert "digits" in run.stdout
    assert ["digits", "1", "READY", "2/2"] in rows(operated)
    assert shoal(operated, "scale", "digits=1")[0] == 0


def test_a_reader_that_has_enough_is_no_error(operated: Server) -> None:
    """`shoal models | head -0`: the pipe has no reader any more."""
    command = [
        sys.executable,
        "-c",
        "from shoal.cli import main; raise SystemExit(main())",
        "models",
        "--url",
        operated.url,
    ]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_model_that_is_not_there_is_refused(operated: Server) -> None:
    code, printed, complaint = shoal(operated, "load", "whale")
    assert (code, printed) == (2, "")
    assert complaint.startswith("failed to load 'whale', failed to poll from model repository\n")


def test_a_configuration_takes_the_file_s_place(operated: Server, tmp_path: Path) -> None:
    (tmp_path / "simple.json").write_text(json.dumps({"backend": "onnxruntime", "max_batch_size": 2}))
    code, _, complaint = shoal(operated, "load", "simple", f"--config={tmp_path}/simple.json")
    assert (code, complaint) == (0, "")
    assert shoal(operated, "unload", "simple")[0] == 0


def test_a_model_is_scaled_up_and_down(operated: Server) -> None:
    for count in (3, 1):
        code, printed, complaint = shoal(operated, "scale", f"digits={count}", "--json")
        assert (code, complaint) == (0, "")
        [version] = json.loads(printed)["versions"]
        assert [instance["state"] for instance in version["instances"]] == ["up"] * count
        assert ["digits", "1", "READY", f"{count}/{count}"] in rows(operated)
    code, printed, _ = shoal(operated, "models", "digits")
    assert code == 0
    summary, heading, instance = printed.splitlines()
    assert summary.startswith("digits, version 1: READY, 1 instance, between ")
    assert heading.startswith("INSTANCE ")
    assert instance.split()[2] == "up"


def test_more_than_it_may_have_is_refused(operated: Server) -> None:
    before = rows(operated)
    code, printed, complaint = shoal(operated, "scale", "digits=1000000")
    assert (code, printed) == (2, "")
    assert complaint
    assert rows(operated) == before


def test_without_explicit_control_it_says_how_to_have_it(samples: Server) -> None:
    code, _, complaint = shoal(samples, "load", "digits")
    assert code == 2
    assert "--model-control-mode=explicit" in complaint


def test_http_and_grpc_listen_at_unix_sockets(tmp_path: Path) -> None:
    addresses = [f"--{protocol}-address=unix:{tmp_path / protocol}" for protocol in ("http", "grpc")]
    with launch(SAMPLES, *addresses, "--metrics-address=127.0.0.1", *only("simple")) as server:
        assert server.read_log(b"Started Metrics Service"), server.log.decode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "http"))
            connection.sendall(b"GET /v2/models/simple/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        with tritonclient.grpc.InferenceServerClient(f"unix:{tmp_path / 'grpc'}") as client:
            assert client.is_model_ready("simple")
        assert server.stop() == 0
    assert list(tmp_path.iterdir()) == []
