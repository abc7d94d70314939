"""The command `torchserve` as its users run it: started in the background, found running, stopped."""

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.server import Server
from tests.repository.torchserve.archives import mar

_COMMAND = [sys.executable, "-c", "import sys; from shoal.cli import torchserve; sys.exit(torchserve())"]
_PROPERTIES = """
inference_address=http://127.0.0.1:0
management_address=http://localhost:0
metrics_address=http://127.0.0.1:0
grpc_inference_port=0
grpc_management_port=0
model_store=$$STORE$$
vmargs=-Xmx1g
"""


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "STORE": str(tmp_path / "store")}


def run(tmp_path: Path, *flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [*_COMMAND, *flags],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        timeout=120,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def ask(port: int, path: str, token: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, b"hi", {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> None:
    for name in ("store", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "config.properties").write_text(_PROPERTIES)
    (tmp_path / "store" / "broken.mar").write_bytes(b"PK no archive")
    yaml = {"c.yaml": "minWorkers: 1\nmaxWorkers: 1\n"}
    for version in ("1.0", "2.0"):
        source = (
            f"def handle(data, context):\n    return data and [b'{version}:' + bytes(row['body']) for row in data]\n"
        )
        files = {**yaml, "h.py": source}
        mar(tmp_path / "store" / f"echo-{version}.mar", files, version=version, handler="h.py", configFile="c.yaml")


def test_a_server_in_the_background_is_found_and_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*_COMMAND, "--start", "--models", "all"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    )
    with Server(process) as server:
        assert process.wait(60) == 0  # the server is a process of its own
        assert server.read_log(b"\nModel server started.\n")
        keys = json.loads((tmp_path / "key_file.json").read_text())
        assert sorted(keys) == ["API", "inference", "management"]
        pid = int((tmp_path / "tmp" / ".model_server.pid").read_text())
        assert b"org.pytorch.serve.ModelServer" in Path(f"/proc/{pid}/cmdline").read_bytes()
        port = server.port_of("TorchServe Inference")
        for path, expected in (("/predictions/echo/1.0", b"1.0:hi"), ("/predictions/echo/2.0", b"2.0:hi")):
            assert ask(port, path, keys["inference"]["key"]) == (200, expected)
        again = "TorchServe is already running, please use torchserve --stop to stop TorchServe.\n"
        assert run(tmp_path, "--start") == (1, again)
        assert run(tmp_path, "--stop", "--foreground") == (0, "TorchServe has stopped.\n")
        assert run(tmp_path, "--stop") == (0, "TorchServe is not currently running.\n")
        server.wait()
        assert b"vmargs is ignored: there is no Java virtual machine" in server.log
        assert b"Archive 'broken.mar' is refused: it is damaged" in server.log  # and the server started all the same
        assert not (tmp_path / "key_file.json").exists()
        assert not (tmp_path / "tmp" / ".model_server.pid").exists()
