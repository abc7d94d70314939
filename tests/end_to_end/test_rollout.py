"""Rollouts on a real server: a version that fails, crashes or is slow is rolled back by itself, with no request failed,
and a good one is promoted."""

import http.client
import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from shoal import Client
from shoal.cli.rollout import EXIT_ROLLED_BACK, rollout
from tests.end_to_end.asking import fetch, tensors
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import (
    DEADLINE_S,
    LOOK_AGAIN_S,
    Server,
    only,
    samples,
    serving,
    serving_to_the_end,
    wait_until,
)

OLD, FAILING, CRASHING, SLOW, GOOD = 1, 2, 3, 4, 5
CONFIG = config_text("python", "INPUT0 INT32 1", "OUTPUT0 INT32 1", "version_policy { all { } }", count=1)
#: Answers with the number of its version, if it answers.
MODEL = python_model(f"""
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        if self.version == {FAILING}:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("it fails")) for _ in requests]
        if self.version == {CRASHING}:
            os._exit(3)
        if self.version == {SLOW}:
            time.sleep(1.0)
        answer = np.array([self.version], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)]) for _ in requests]
""")
INPUTS = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7]}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository, state = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("state") / "rollouts.json"
    add_model(repository, "m", CONFIG, MODEL)
    for version in range(FAILING, GOOD + 1):
        directory = repository / "m" / str(version)
        directory.mkdir()
        (directory / "model.py").write_text(MODEL)
    with serving(repository, *only("m"), f"--rollout-file={state}", "--grpc-port=0") as opened:
        choose_old(opened)
        yield opened


def choose_old(server: Server) -> None:
    """Have requests that name no version mean the old one."""
    for body in ({"version": OLD, "steps": "100", "guard": "none"}, {"action": "promote"}):
        assert fetch(server.http_port, "/v2/models/m/rollout", body).status == 200


class Traffic:
    """Clients that ask without a version, each again and again on a connection of its own."""

    def __init__(self, server: Server, num_clients: int = 4) -> None:
        self._port = server.http_port
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(num_clients)]
        self.answered = Counter[int]()
        self.wrong: list[str] = []

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        body = json.dumps(INPUTS)
        while not self._is_over.wait(LOOK_AGAIN_S):  # without a pause they take the server's cores
            connection.request("POST", "/v2/models/m/infer", body)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                self.wrong.append(f"{response.status}: {text.decode()}")
                continue
            told = json.loads(text)
            (version,) = told["outputs"][0]["data"]
            self.answered[version] += 1
            if told["model_version"] != str(version):
                self.wrong.append(f"version {version} is called {told['model_version']}")
        connection.close()

    @contextmanager
    def running(self) -> Iterator["Traffic"]:
        """Requests as long as this context is open; none of them may fail."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join()
        assert self.wrong == []


def command(server: Server, *argv: str) -> int:
    """The exit code of `shoal rollout m …`."""
    return rollout(["m", *argv, "--url", f"http://{server.url}"], environ={})


def told(server: Server) -> Any:
    return fetch(server.http_port, "/v2/models/m/rollout").json


PLAN = ("--steps=50,100", "--every=100requests", "--min-requests=20")


def reason_on_page(server: Server, version: int) -> str:
    models = fetch(server.http_port, "/ui/figures").json["models"]
    (found,) = [each["reason"] for each in models if each["version"] == str(version)]
    return str(found)


@pytest.mark.parametrize(
    ("version", "guard", "reason"),
    [
        (FAILING, "errors=+0.1%", "guard errors=+0.1%: version 2 failed "),
        (CRASHING, "errors=+0.1%", "guard errors=+0.1%: version 3 failed "),
        (SLOW, "p99=+100ms", "guard p99=+100ms: "),
    ],
)
def test_a_bad_version_is_rolled_back_by_itself_and_no_request_fails(
    server: Server, capsys: pytest.CaptureFixture[str], version: int, guard: str, reason: str
) -> None:
    with Traffic(server, 8).running() as traffic:
        assert command(server, str(version), *PLAN, f"--guard={guard}") == EXIT_ROLLED_BACK
    out, err = capsys.readouterr()
    assert f"running: version {version} gets 50 %, version 1 the rest (step 1 of 2)" in out
    assert err.startswith(f"rolled back to version 1: {reason}")
    assert traffic.answered[OLD] > 20
    assert set(traffic.answered) <= {OLD, version}
    now = told(server)
    assert (now["phase"], now["weights"]["1"], now["weights"][str(version)]) == ("rolled back", 100, 0)
    assert server.read_log(f"the rollout to version {version} is rolled back to version 1: {reason}".encode())
    # A version whose instance has died may be shown as unavailable until that is up again.
    wait_until(lambda: reason_on_page(server, version).startswith(f"rolled back to version 1: {reason}"))
    found = samples(server.metrics_port)
    assert found[f'shoal_rollout_state{{model="m",phase="rolled back",version="{version}"}}'] == 1
    if version != SLOW:
        assert found[f'shoal_rollout_fallen_back_total{{model="m",version="{version}"}}'] >= 2


def test_a_good_version_is_promoted_step_by_step(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with Traffic(server).running() as traffic:
        assert command(server, str(GOOD), *PLAN, "--guard=p99=+5s,errors=+0.1%") == 0
    out = capsys.readouterr().out
    assert "running: version 5 gets 50 %, version 1 the rest (step 1 of 2)\n" in out
    assert "version 5 is promoted\n" in out
    assert server.read_log(b"version 5 gets 100 % of the requests that name no version (step 2 of 2)")
    assert min(traffic.answered[OLD], traffic.answered[GOOD]) >= 20
    assert fetch(server.http_port, "/v2/models/m/infer", INPUTS).json["model_version"] == "5"
    assert samples(server.metrics_port)['shoal_rollout_weight_percent{model="m",version="5"}'] == 100


@pytest.fixture
def divided(server: Server) -> Iterator[Server]:
    """Half of the requests go to version 5, by the header x-user; the other half to version 1."""
    choose_old(server)
    plan = {"version": GOOD, "steps": "50", "guard": "none", "sticky_header": "X-User"}
    reply = fetch(server.http_port, "/v2/models/m/rollout", plan)
    assert (reply.status, reply.json["weights"]["1"], reply.json["weights"]["5"]) == (200, 50, 50)
    yield server
    assert fetch(server.http_port, "/v2/models/m/rollout", {"action": "abort"}).json["phase"] == "rolled back"
    assert told(server)["reason"] == "it was aborted by request"


def test_a_user_has_one_version_over_every_protocol(divided: Server) -> None:
    seen = dict[str, set[str]]()
    values = {"INPUT0": np.array([7], np.int32)}
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{divided.grpc_port}") as grpc:
        for user in map(str, range(16)):
            versions = seen[user] = set()
            for _ in range(2):
                reply = fetch(divided.http_port, "/v2/models/m/infer", INPUTS, headers={"x-user": user})
                versions.add(reply.json["model_version"])
                inputs = tensors(values, api=tritonclient.grpc)
                result: Any = grpc.infer("m", inputs, headers={"x-user": user}, client_timeout=DEADLINE_S)
                versions.add(result.get_response().model_version)
                (answer,) = result.as_numpy("OUTPUT0")
                versions.add(str(answer))
            chunked = fetch(
                divided.http_port, "/v2/models/m/infer", iter([json.dumps(INPUTS).encode()]), "POST", {"x-user": user}
            )
            versions.add(chunked.json["model_version"])
    assert all(len(versions) == 1 for versions in seen.values()), seen
    assert set.union(*seen.values()) == {"1", "5"}


def test_a_guest_is_told_which_version_has_answered(divided: Server) -> None:
    with Client(divided.client_socket) as client:
        results = [client.infer("m", {"INPUT0": np.array([7], np.int32)}) for _ in range(10)]
    assert {result.model_version for result in results} == {"1", "5"}
    assert all(result.model_version == str(result["OUTPUT0"][0]) for result in results)


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (
            {"version": 9},
            503,
            "version 9 of model 'm' is not READY; READY are 1, 2, 3, 4, 5. The model's version_policy",
        ),
        ({"version": 5, "guard": "disagree<1%"}, 400, "guard 'disagree' needs version 5 of model 'm' to be the shadow"),
        ({"version": 5, "steps": "10,5"}, 400, "steps ascend"),
        ({"action": "halt"}, 400, "a rollout has no action 'halt'"),
        ({"action": "pause"}, 404, "model 'm' has no rollout under way"),
    ],
)
def test_what_cannot_be_done_is_refused(server: Server, body: dict[str, Any], status: int, sentence: str) -> None:
    reply = fetch(server.http_port, "/v2/models/m/rollout", body)
    assert (reply.status, reply.json["error"][: len(sentence)]) == (status, sentence)


IDENTITY = config_text("identity", "INPUT0 INT32 1", "OUTPUT0 INT32 1", "version_policy { all { } }", rows=8, count=1)


def test_a_rollout_in_the_repository_begins_by_itself_and_another_plan_takes_its_place(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    add_model(repository, "m", IDENTITY)
    asked = {"inputs": [{**INPUTS["inputs"][0], "shape": [1, 1]}]}
    flags = "--model-control-mode=poll", "--repository-poll-secs=3600"
    with serving_to_the_end(repository, *flags, environment={"XDG_STATE_HOME": str(tmp_path)}) as server:

        def version() -> str:
            return str(fetch(server.http_port, "/v2/models/m/infer", asked).json["model_version"])

        def commit(plan: str) -> None:
            (repository / "m" / "rollout.json").write_text(plan)
            server.process.send_signal(signal.SIGHUP)

        (repository / "m" / "2").mkdir()
        commit('{"version": 2, "steps": "0.01", "guard": "none"}')
        seen = Counter[str]()
        while told(server).get("phase") != "running":
            seen[version()] += 1
        assert seen.keys() <= {"1"}
        assert told(server)["weights"] == {"1": 99.99, "2": 0.01}
        commit('{"version": 2, "steps": "100", "guard": "none"}')
        wait_until(lambda: told(server)["weights"] == {"1": 0, "2": 100})
        wait_until(lambda: version() == "2")  # the batcher hears of it after those who ask what the weights are
        assert {version() for _ in range(20)} == {"2"}
        commit("{")
        assert server.read_log(b"its rollout.json is no rollout")
        assert server.log.count(b"loading: m:") == 2, "the file is of no version"
        assert told(server)["phase"] == "running"


def test_a_rollout_goes_on_after_a_restart(tmp_path: Path) -> None:
    repository, state = tmp_path / "models", tmp_path / "state" / "rollouts.json"
    add_model(repository, "m", IDENTITY)
    (repository / "m" / "2").mkdir()
    plan = {"version": 2, "steps": "10,40,100", "every": "5requests", "min_requests": 0, "guard": "none"}
    asked = {"inputs": [{**INPUTS["inputs"][0], "shape": [1, 1]}]}
    with serving_to_the_end(repository, *only("m"), f"--rollout-file={state}") as server:
        assert fetch(server.http_port, "/v2/models/m/rollout", plan).json["weights"] == {"1": 90, "2": 10}
        wait_until(
            lambda: fetch(server.http_port, "/v2/models/m/infer", asked).status == 200 and told(server)["step"] == 2
        )
        assert fetch(server.http_port, "/v2/models/m/rollout", {"action": "pause"}).json["phase"] == "paused"
    kept = json.loads(state.read_text())["rollouts"][0]
    assert (kept["name"], kept["stable"], kept["step"], kept["phase"]) == ("m", 1, 1, "paused")
    with serving_to_the_end(repository, *only("m"), f"--rollout-file={state}") as server:
        now = told(server)
        assert (now["phase"], now["step"], now["weights"]) == ("paused", 2, {"1": 60, "2": 40})
        answered = Counter(
            fetch(server.http_port, "/v2/models/m/infer", asked).json["model_version"] for _ in range(20)
        )
        assert answered.keys() == {"1", "2"}
        assert fetch(server.http_port, "/v2/models/m/rollout", {"action": "resume"}).json["phase"] == "running"
        wait_until(
            lambda: (
                fetch(server.http_port, "/v2/models/m/infer", asked).status == 200
                and told(server)["phase"] == "promoted"
            )
        )
