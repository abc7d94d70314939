"""Upgrades of a real server: under load no request fails, a new server that does not come up changes nothing, and both
servers end together until the new one has taken over."""

import http.client
import json
import os
import shlex
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.certificates import make_certificates
from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model, python_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, wait_for_deaths
from tests.end_to_end.traffic import MODEL
from tests.end_to_end.upgrades import (
    BROKEN,
    HANGS,
    IS_ENDED,
    PLAIN,
    TLS,
    WORKS,
    Installation,
    Load,
    await_started,
    doors_of,
    new_pid,
    stop,
    tls_flags,
    upgrade,
    write_models,
)

#: Loads once its gate lets it pass.
GATED = python_model("""
    def initialize(self, args):
        open(f"{args['model_repository']}/gate").close()

    def execute(self, requests):
        return []
""")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """The gate of the model `gated`, beside which the repository has `m`."""
    models = tmp_path / "models"
    add_model(models, "m", MODEL)
    add_model(models, "gated", MODEL.replace('"identity"', '"python"'), GATED)
    return Gate(models / "gated" / "gate")


def ask(server: Server, path: str, body: Any = None) -> tuple[int, Any]:
    """Ask over a connection of its own: status, and the answer's JSON."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)) as connection:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None


def mark(server: Server) -> int:
    """The end of the log as it is now."""
    server.read_on()
    return len(server.log)


def change_all(server: Server, region: SharedMemory) -> None:
    """Change by requests what a new server takes over."""
    config = {"parameters": {"config": json.dumps({"backend": "identity", "max_batch_size": 4, **TENSORS}), **FILES}}
    assert ask(server, "/v2/repository/models/given/load", config)[0] == 200
    assert ask(server, "/v2/repository/models/unwanted/unload", {})[0] == 200
    assert ask(server, "/v2/repository/models/m/instances", {"count": 2, "wait": True})[0] == 200
    assert ask(server, "/v2/logging", {"log_warning": False})[0] == 200
    assert ask(server, "/v2/trace/setting", {"trace_rate": "77"})[0] == 200
    assert ask(server, "/v2/models/m/trace/setting", {"trace_count": "5"})[0] == 200
    body = {"key": region.name, "offset": 8, "byte_size": 16}
    assert ask(server, "/v2/systemsharedmemory/region/r/register", body)[0] == 200


TENSORS = {
    "input": [{"name": "A", "data_type": "TYPE_INT32", "dims": [4]}],
    "output": [{"name": "B", "data_type": "TYPE_INT32", "dims": [4]}],
}
FILES = {"file:1/notes.txt": "bm90ZXM="}


def state(server: Server) -> dict[str, Any]:
    """What requests have changed, as the server tells it."""
    index = ask(server, "/v2/repository/index", {})[1]
    return {
        "models": sorted(row["name"] for row in index if row.get("state") == "READY"),
        "batch": ask(server, "/v2/models/given/config")[1]["max_batch_size"],
        "instances": len(ask(server, "/v2/repository/models/m/instances")[1]["versions"][0]["instances"]),
        "log": ask(server, "/v2/logging")[1],
        "trace": [ask(server, f"/v2/{model}trace/setting")[1] for model in ("", "models/m/")],
        "regions": ask(server, "/v2/systemsharedmemory/status")[1],
    }


def test_no_request_fails_and_what_was_changed_stays(tmp_path: Path, gate: Gate) -> None:
    """Three upgrades of one server: of a broken installation, of one that is stopped by its end, and one that succeeds;
    then the old server is killed while a new one loads. The next server removes the files that both have left."""
    add_model(tmp_path / "models", "unwanted", MODEL)
    explicit = ["--model-control-mode=explicit", *(f"--load-model={each}" for each in ("m", "gated", "unwanted"))]
    flags = [*explicit, f"--client-socket={tmp_path}/socket", "--grpc-port=0", f"--pid-file={tmp_path}/pid"]
    flags += ["--allow-client-shm"]
    region = SharedMemory(create=True, size=64)
    gate.open()
    installation = Installation(tmp_path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    with installation.serving(tmp_path / "models", *flags, environment=environment) as server:
        change_all(server, region)
        region.close()
        region.unlink()  # the server has it open, and must hand that over
        before, old = state(server), server.process.pid
        assert before["models"] == ["gated", "given", "m"]
        with Load(doors_of(server), PLAIN) as load, ThreadPoolExecutor(1) as pool:
            load.await_answers(5)
            installation.install(BROKEN)
            done = upgrade(old)
            assert (done.returncode, server.process.poll()) == (2, None), done
            assert "exited with code 3 before it had read its command line" in done.stderr
            assert f"Process {old} goes on as before." in done.stderr
            installation.install(WORKS)
            # A new server that ends while it loads; meanwhile another upgrade is refused, as changes are.
            gate.close()
            start = mark(server)
            first = pool.submit(upgrade, old)
            new = await_started(server, start)
            second = upgrade(old)
            assert (second.returncode, second.stdout) == (2, "")
            assert f"an upgrade is under way: process {new} is being brought up" in second.stderr
            status, body = ask(server, "/v2/repository/models/m/load", {})
            assert (status, "is being upgraded" in body["error"]) == (503, True)
            os.kill(new, signal.SIGKILL)
            assert "was killed by SIGKILL" in first.result().stderr.replace("signal 9", "SIGKILL"), first.result()
            load.await_answers(5)
            gate.open()
            done = upgrade(old)
            assert done.returncode == 0, (done, server.log.decode())
            new = new_pid(done.stdout)
            assert f"Process {old} has answered what it had accepted, and has ended." in done.stdout
            load.await_answers(5)
        assert load.faults == []
        assert server.process.wait(DEADLINE_S) == 0
        assert state(server) == before
        assert (tmp_path / "pid").read_text() == str(new)
        gate.close()
        start = mark(server)
        os.kill(new, signal.SIGUSR2)
        newest = await_started(server, start)
        assert server.read_log(b"loading: gated:1", start=start)  # the new server has its copies
        children = descendants(new)
        os.kill(new, signal.SIGKILL)
        assert wait_for_deaths([new, newest, *children])
        server.wait()
    assert len(list(temporary.glob("shoal-override-*"))) == 2
    with installation.serving(
        tmp_path / "models", "--grpc-port=0", "--model-control-mode=explicit", environment=environment
    ) as server:
        assert list(temporary.glob("shoal-override-*")) == []
        assert server.stop() == 0


def test_systemd_follows_the_new_server_and_ends_both(tmp_path: Path, gate: Gate) -> None:
    """The main process is named before the new server says that it is ready; SIGTERM while a new server loads ends
    both. No request over TLS fails meanwhile."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        name = f"shoal-{token_hex(8)}"
        manager.bind("\0" + name)
        manager.settimeout(DEADLINE_S)
        said: list[str] = []

        def read_until(line: str) -> None:
            while line not in said:
                said.extend(manager.recv(4096).decode().split("\n"))

        gate.open()
        certificates = make_certificates(tmp_path)
        flags, environment = ["--grpc-port=0", *tls_flags(certificates)], {"NOTIFY_SOCKET": f"@{name}"}
        with Installation(tmp_path).serving(tmp_path / "models", *flags, environment=environment) as server:
            read_until("READY=1")
            said.clear()
            with Load(doors_of(server, certificates), TLS) as load:
                load.await_answers(5)
                start, old = mark(server), server.process.pid
                os.kill(old, signal.SIGUSR2)
                new = await_started(server, start)
                read_until("READY=1")
                assert said[0] == f"MAINPID={new}"
                assert server.process.wait(DEADLINE_S) == 0
                load.await_answers(5)
            assert load.faults == []
            gate.close()
            start = mark(server)
            os.kill(new, signal.SIGUSR2)
            newest = await_started(server, start)
            os.kill(new, signal.SIGTERM)
            read_until("STOPPING=1")
            ending = f"upgrade: failed: this server is stopping. Process {newest} is ended, too"
            assert server.read_log(ending.encode(), start=start)
            server.wait()
            assert wait_for_deaths([new, newest])
            assert said.count("STOPPING=1") == 1


def test_a_new_server_that_hangs_is_ended(tmp_path: Path) -> None:
    """Two signals begin one upgrade."""
    installation = Installation(tmp_path)
    models = write_models(tmp_path / "models")
    with installation.serving(models, "--grpc-port=0", "--upgrade-timeout-secs=1") as server:
        with Load(doors_of(server), PLAIN) as load:
            load.await_answers(5)
            installation.install(HANGS)
            start = mark(server)
            server.process.send_signal(signal.SIGUSR2)
            new = await_started(server, start)
            server.process.send_signal(signal.SIGUSR2)
            assert server.read_log(b"upgrade: refused: an upgrade is under way", start=start)
            assert server.read_log(b"within --upgrade-timeout-secs. This server goes on as before", start=start)
            assert wait_for_deaths([new])
            load.await_answers(5)
        assert load.faults == []
        assert server.stop() == 0


def test_a_model_that_is_being_loaded_is_served_by_the_new_server(tmp_path: Path, gate: Gate) -> None:
    """The upgrade waits for the load."""
    explicit = ["--model-control-mode=explicit", "--load-model=m", "--grpc-port=0"]
    with Installation(tmp_path).serving(tmp_path / "models", *explicit) as server, ThreadPoolExecutor(1) as pool:
        start = mark(server)
        load = pool.submit(ask, server, "/v2/repository/models/gated/load", {})
        assert server.read_log(b"loading: gated:1", start=start)
        server.process.send_signal(signal.SIGUSR2)
        assert server.read_log(b"upgrade: waits for what is under way, for 300 s at most: load", start=start)
        gate.open()
        assert load.result()[0] == 200
        assert server.read_log(b"serves in this server's place", start=start)
        new = await_started(server, start)
        assert server.process.wait(DEADLINE_S) == 0
        assert ask(server, "/v2/models/gated/ready")[0] == 200
        stop(server, new)


def test_a_new_server_that_is_ended_before_it_has_taken_over_leaves_the_old_one_and_its_sockets(tmp_path: Path) -> None:
    """Both ended: the old one took the acknowledgement of a server that was stopping. And a new server that stopped
    removed the Unix sockets that the old one listens on."""
    installation = Installation(tmp_path)
    models = write_models(tmp_path / "models")
    path = tmp_path / "metrics"
    flags = ["--grpc-port=0", f"--metrics-address=unix:{path}", f"--client-socket={tmp_path}/clients"]
    with installation.serving(models, *flags, f"--pid-file={tmp_path}/pid") as server:
        old = server.process.pid
        with Load(doors_of(server), PLAIN) as load:
            load.await_answers(5)
            installation.install(IS_ENDED)
            done = upgrade(old)
            assert done.returncode == 2, done
            assert "exited with code 0 before it had taken over" in done.stderr
            load.await_answers(5)
        assert load.faults == []
        assert path.is_socket()
        assert (tmp_path / "pid").read_text() == str(old)
        installation.install(WORKS)
        done = upgrade(old)
        assert done.returncode == 0, done
        assert server.process.wait(DEADLINE_S) == 0
        assert path.is_socket()
        stop(server, new_pid(done.stdout))
        assert not path.exists()


def test_help_shows_how_it_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli import main

    with pytest.raises(SystemExit):
        main(["upgrade", "--help"])
    printed = capsys.readouterr().out
    assert "pip install --upgrade shoal && shoal upgrade" in printed
    assert shlex.split("shoal upgrade --pid 4711")[-1] in printed
