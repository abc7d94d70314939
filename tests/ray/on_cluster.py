"""A real cluster of Ray on this machine, in one process tree; what it shows is printed as JSON. Run by test_cluster.py.

    python -m tests.ray.on_cluster direct|proxied FOLDER

`direct`: Serve has HAProxy, and requests reach the servers themselves. `proxied`: Serve's own proxy, in Python.
"""

import http.client
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The modules, imported by `main`: Ray reads its environment with its import.
ray: Any = None
serve: Any = None

SAMPLES = Path(__file__).parents[2] / "model_repository"
DEADLINE_S = 240.0
ANSWER = "0.973052:2:two"
DIGITS = (SAMPLES / "digits" / "request.json").read_bytes()
INFER = "/v2/models/digits/infer"
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def asked(
    port: int, method: str, path: str, body: bytes | None = None, *, address: str = "127.0.0.1", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=DEADLINE_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition. Raises TimeoutError at the deadline."""
    end_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.2)
    return found


def processes(title: str) -> set[int]:
    """The descendants of this process whose command has this text in it."""
    found, left = set[int](), [os.getpid()]
    while left:
        pid = left.pop()
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for thread in os.listdir(f"/proc/{pid}/task"):
                left += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:
            continue
        if title in command:
            found.add(pid)
    return found


class Load:
    """Clients that ask without a pause, each on a connection of its own, and check every answer."""

    def __init__(self, port: int, num_clients: int) -> None:
        self._port = port
        self._is_over = threading.Event()
        self.num_right = 0
        self.failures = list[str]()
        self.num_closed = 0  # connections that were closed without a response, as HAProxy does when it is reloaded
        self._threads = [threading.Thread(target=self._run) for _ in range(num_clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        while not self._is_over.is_set():
            try:
                connection.request("POST", INFER, DIGITS)
                response = connection.getresponse()
                body = response.read()
            except (http.client.RemoteDisconnected, ConnectionResetError):
                self.num_closed += 1
                connection.close()
                continue
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            if response.status == 200 and ANSWER.encode() in body:
                self.num_right += 1
            else:
                self.failures.append(f"{response.status} {body[:200]!r}")


def main(mode: str, folder: str) -> dict[str, Any]:
    global ray, serve
    os.environ.update(ENVIRONMENT)
    if mode == "direct":
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
    ray, serve = importlib.import_module("ray"), importlib.import_module("ray.serve")
    ray.init(
        num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, _temp_dir=folder, log_to_driver=False
    )
    try:
        port = free_port()
        serve.start(http_options={"host": "0.0.0.0", "port": port})
        return SCENES[mode](port)
    finally:
        serve.shutdown()
        ray.shutdown()


def application(**more: Any) -> Any:
    import shoal.ray

    models = [f"--load-model={model}" for model in ("digits", "simple", "repeat")]
    flags = ["--model-control-mode=explicit", *models, *more.pop("flags", [])]
    return shoal.ray.deployment(str(SAMPLES), num_cpus=0.5, flags=flags, exit_timeout_s=10, **more)


def is_up(port: int) -> bool:
    try:
        return asked(port, "POST", INFER, DIGITS)[0] == 200
    except OSError:
        return False


def direct(port: int) -> dict[str, Any]:
    """Two replicas behind HAProxy: asked, updated and killed under load, deleted."""
    facts: dict[str, Any] = {}
    serve.run(application(num_replicas=2), name="shoal")
    until(lambda: is_up(port), "an answer")
    facts["reached the server itself"] = b"shoal" in asked(port, "GET", "/ui")[1].lower()
    facts["administration"] = asked(port, "POST", "/v2/repository/models/digits/unload")[0]
    facts["infer"] = infer_with_tritonclient(port)
    answers = json.dumps({"IN": [1, 2, 3], "DELAY": [0, 0, 0], "WAIT": 0}).encode()
    status, body = asked(port, "POST", "/v2/models/repeat/generate_stream", answers)
    facts["stream"] = [status, body.count(b"data: ")]
    first = processes("shoal supervisor")
    facts["servers"] = len(first)
    with Load(port, 4) as load:
        serve.run(application(num_replicas=2, flags=["--id=second"]), name="shoal")
        until(lambda: not first & processes("shoal supervisor"), "the end of the servers of before")
        until(lambda: load.num_right > 1000, "a thousand answers")
    facts["update"] = load.failures[:5]
    facts["answers during the update"] = load.num_right
    facts["connections closed during the update"] = load.num_closed
    facts["updated"] = json.loads(asked(port, "GET", "/v2")[1])["name"]
    victim = min(processes("shoal supervisor"))
    with Load(port, 4) as load:
        os.kill(victim, signal.SIGKILL)
        begun = load.num_right

        def is_replaced() -> bool:
            servers = processes("shoal supervisor")
            return victim not in servers and len(servers) == 2 and load.num_right > begun + 500

        until(is_replaced, "a server in place of the killed one")
    facts["killed"] = len(load.failures) + load.num_closed
    facts["failures of the kill"] = sorted({each[:60] for each in load.failures})
    last = processes("shoal ")
    serve.delete("shoal")
    until(lambda: not last & processes("shoal "), "the end of all servers")
    facts["left"] = len(processes("shoal "))
    return facts


def infer_with_tritonclient(port: int) -> list[int]:
    """Triton's own client, with binary tensors."""
    import numpy as np
    from tritonclient import http as triton

    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(np.full((1, 16), 21, np.int32))
    output = client.infer("simple", inputs).as_numpy("OUTPUT0")
    assert output is not None
    client.close()
    return sorted({int(each) for each in output.ravel()})


def proxied(port: int) -> dict[str, Any]:
    """One replica behind Serve's proxy under a route prefix; a handle; a dataset; an application that cannot start."""
    import numpy as np

    import shoal.ray

    facts: dict[str, Any] = {}
    handle = serve.run(application(), name="shoal", route_prefix="/models")
    status, body = asked(port, "POST", "/models" + INFER, DIGITS)
    facts["relayed"] = [status, ANSWER in body.decode()]
    ones = np.ones((1, 16), np.int32)
    result = handle.infer.remote("simple", {"INPUT0": ones, "INPUT1": ones}).result(timeout_s=DEADLINE_S)
    facts["handle"] = sorted({int(each) for each in result["OUTPUT0"].ravel()})
    serve.delete("shoal")
    numbers = [{"INPUT0": np.full(16, each, np.int32), "other": np.ones(16, np.int32)} for each in range(40)]
    dataset = shoal.ray.predict(
        importlib.import_module("ray.data").from_items(numbers),
        model="simple",
        model_repository=str(SAMPLES),
        columns={"INPUT1": "other"},
        outputs=["OUTPUT0"],
        batch_size=16,
        num_cpus=0.5,
    )
    rows = dataset.take_all()
    facts["predicted"] = sorted(int(row["OUTPUT0"][0]) - int(row["INPUT0"][0]) for row in rows)
    facts["columns"] = sorted(rows[0])
    flags = ["--model-control-mode=explicit", "--load-model=absent"]
    broken = shoal.ray.deployment(str(SAMPLES), num_cpus=0.5, flags=flags, max_constructor_retry_count=1)
    try:
        serve.run(broken, name="broken", route_prefix="/broken")
    except RuntimeError:
        application_status = serve.status().applications["broken"]
        facts["broken"] = application_status.status
        reasons = [application_status.message, *(each.message for each in application_status.deployments.values())]
        facts["reason"] = "\n".join(reasons)
    return facts


SCENES: dict[str, Callable[[int], dict[str, Any]]] = {"direct": direct, "proxied": proxied}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
