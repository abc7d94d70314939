"""The command `torchserve` as its users run it: started in the background, found running, stopped."""

import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.server import Server
from tests.end_to_end.tutorials import ROOT, Reader
from tests.repository.torchserve.archives import mar
from tests.repository.torchserve.test_workflow import war

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
    function = "def last(data, context):\n    return data and [bytes(data[0]['body']) + b'!']\n"
    spec = "models: {echo: {url: echo-1.0.mar}}\ndag: {echo: [last]}\n"
    war(tmp_path / "store" / "w.war", spec, function, workflowName="w")


def test_a_start_that_waits_for_the_lock_of_the_tokens_is_stopped(tmp_path: Path) -> None:
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    file = tmp_path / "tmp" / ".model_server.pid"
    with subprocess.Popen([*_COMMAND, "--start"], cwd=tmp_path, env=environment(tmp_path)) as process:
        while not (file.exists() and file.read_text()):
            assert process.poll() is None
        assert run(tmp_path, "--stop") == (0, "TorchServe has stopped.\n")
        assert process.wait(60) == 0
    os.close(lock)
    assert not file.exists()


def test_a_server_in_the_background_is_found_and_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*_COMMAND, "--start", "--models", "all", "--enable-model-api"],
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
        registered = manage(server, "POST", "/workflows?url=w.war", keys["management"]["key"])
        assert registered == (200, {"status": "Workflow w has been registered and scaled successfully."})
        file = tmp_path / "tmp" / ".model_server.pid"
        for is_upgraded in (False, True):
            if is_upgraded:  # its pid file, its tokens, its ports and what is registered stay, workflows too
                command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "upgrade"]
                done = subprocess.run([*command, f"--pid-file={file}"], check=False, timeout=180, capture_output=True)
                assert done.returncode == 0, (done, server.log.decode())
                assert f"Process {file.read_text()} " in done.stdout.decode()
                assert json.loads((tmp_path / "key_file.json").read_text()) == keys
                assert file.read_text() != str(pid)
            for path, expected in (
                ("/predictions/echo/1.0", b"1.0:hi"),
                ("/predictions/echo/2.0", b"2.0:hi"),
                ("/wfpredict/w", b"1.0:hi!"),
            ):
                assert ask(port, path, keys["inference"]["key"]) == (200, expected)
            workflows = manage(server, "GET", "/workflows", keys["management"]["key"])
            assert workflows == (200, {"workflows": [{"workflowName": "w", "workflowUrl": "w.war"}]})
        again = "TorchServe is already running, please use torchserve --stop to stop TorchServe.\n"
        assert run(tmp_path, "--start") == (1, again)
        assert run(tmp_path, "--stop", "--foreground") == (0, "TorchServe has stopped.\n")
        assert run(tmp_path, "--stop") == (0, "TorchServe is not currently running.\n")
        server.wait()
        assert b"vmargs is ignored: there is no Java virtual machine" in server.log
        assert b"Archive 'broken.mar' is refused: it is damaged" in server.log  # and the server started all the same
        assert not (tmp_path / "key_file.json").exists()
        assert not (tmp_path / "tmp" / ".model_server.pid").exists()


def test_a_start_goes_on_where_the_last_server_stopped(tmp_path: Path) -> None:
    with started(tmp_path, "--models", "echo-1.0.mar", "--enable-model-api") as server:
        assert manage(server, "POST", "/models?url=echo-2.0.mar&batch_size=3&initial_workers=1")[0] == 200
        assert manage(server, "PUT", "/models/echo/2.0/set-default")[0] == 200
        assert manage(server, "PUT", "/models/echo/1.0?min_worker=0&synchronous=true")[0] == 200
        expected = registered(server)
        assert expected == {"1.0": (0, 1, False), "2.0": (1, 3, True)}
        assert server.stop() == 0
    written = sorted((tmp_path / "logs" / "config").iterdir())
    kinds = [each.name.partition("-")[2] for each in written]
    assert (kinds[0], kinds[-1]) == ("startup.cfg", "shutdown.cfg")
    assert written[-1].stat().st_mode & 0o777 == 0o600
    with started(tmp_path, "--models", "no-such.mar") as server:  # which counts as little as in TorchServe
        assert registered(server) == expected
        assert ask(server.port_of("TorchServe Inference"), "/predictions/echo", "") == (200, b"2.0:hi")
        assert server.stop() == 0
    written = sorted((tmp_path / "logs" / "config").iterdir())
    with started(tmp_path, "--ncs", "--models", "echo-1.0.mar") as server:
        assert registered(server) == {"1.0": (1, 1, True)}
        assert server.stop() == 0
    assert sorted((tmp_path / "logs" / "config").iterdir()) == written


def test_the_tutorial(tmp_path: Path) -> None:
    """Each output is as the page shows it; the ports are those of this test's config.properties."""
    (tmp_path / "config.properties").write_text(_PROPERTIES.replace("model_store=$$STORE$$", ""))
    servers: list[Server] = []

    def torchserve(words: list[str]) -> str:
        command = [*_COMMAND, *words[1:]]
        variables = {**environment(tmp_path), "TS_CONFIG_FILE": "config.properties"}
        if words[1] == "--stop":
            return subprocess.run(
                [*command, "--foreground"], cwd=tmp_path, env=variables, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        process = subprocess.Popen(
            command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        )
        servers.append(Server(process))
        reader.addresses["localhost:8080"] = f"127.0.0.1:{servers[-1].port_of('TorchServe Inference')}"
        assert process.wait(60) == 0  # the server is a process of its own
        return ""

    reader = Reader(tmp_path, programs={"torchserve": torchserve})
    try:
        reader.read((ROOT / "docs" / "tutorials" / "torchserve.md").read_text())
    except BaseException:
        torchserve(["torchserve", "--stop"])
        raise
    assert reader.num_compared == 4
    servers[-1].wait()


_FORM = b'--b\r\nContent-Disposition: form-data; name="body"\r\n\r\nhi\r\n--b--\r\n'


def test_listeners_may_be_unix_sockets(tmp_path: Path) -> None:
    inference, management = tmp_path / "inference.sock", tmp_path / "management.sock"
    for path in (inference, management):
        with socket.socket(socket.AF_UNIX) as left:  # as a server that was killed leaves it
            left.bind(str(path))
    properties = (tmp_path / "config.properties").read_text()
    properties = properties.replace("http://127.0.0.1:0", f"unix:{inference}").replace(
        "http://localhost:0", f"unix:{management}"
    )
    (tmp_path / "config.properties").write_text(properties)
    with started(tmp_path, "--ncs", "--models", "echo-1.0.mar") as server:
        server.read_log(b"\nModel server started.\n")
        assert f"Started TorchServe Inference at unix:{inference}".encode() in server.log
        form = {"Content-Type": "multipart/form-data; boundary=b"}
        connection = UnixHttpConnection(inference)
        # The lane answers, hands the form over to the road, and gets the connection back.
        for method, target, body, headers in (
            ("POST", "/predictions/echo", b"hi", {}),
            ("POST", "/predictions/echo", _FORM, form),
            ("POST", "/predictions/echo", b"hi", {}),
        ):
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"1.0:hi")
        assert connection.sock is not None
        connection.request("GET", "/metrics")  # equal addresses share a listener
        assert connection.getresponse().status == 200
        connection.close()
        manager = UnixHttpConnection(management)
        manager.request("GET", "/models")
        assert [each["modelName"] for each in json.loads(manager.getresponse().read())["models"]] == ["echo"]
        manager.close()
        assert server.stop() == 0
    assert not inference.exists()
    assert not management.exists()


class UnixHttpConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the path."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


@contextmanager
def started(tmp_path: Path, *flags: str) -> Iterator[Server]:
    """A server in the foreground, without tokens."""
    process = subprocess.Popen(
        [*_COMMAND, "--start", "--foreground", "--dt", *flags],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with Server(process) as server:
        yield server


def manage(server: Server, method: str, path: str, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("localhost", server.port_of("TorchServe Management"), timeout=60)
    connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    told = answer.status, json.loads(answer.read())
    connection.close()
    return told


def registered(server: Server) -> dict[str, tuple[int, int, bool]]:
    """Of each version of the model: workers, batch size, and whether it is the default one."""
    _, versions = manage(server, "GET", "/models/echo/all")
    (default,) = manage(server, "GET", "/models/echo")[1]
    return {
        each["modelVersion"]: (
            len(each["workers"]),
            each["batchSize"],
            each["modelVersion"] == default["modelVersion"],
        )
        for each in versions
    }
