"""TorchServe's workflows on a real server: registered from a `.war` over HTTP, asked, described, unregistered."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.server import DEADLINE_S, wait_until
from tests.end_to_end.torchserve_listeners import TorchServe, torchserve_command
from tests.repository.torchserve.archives import mar
from tests.repository.torchserve.test_workflow import war

#: Models and functions as TorchServe's examples of workflows have them: JSON between nodes, names of nodes where
#: several come together. `upper` is a class, as handlers are.
UPPER = """
class Upper:
    def initialize(self, context):
        self.rows = 0

    def handle(self, data, context):
        return [bytes(row["body"]).decode().upper() for row in data]
"""
LENGTH = """
def handle(data, context):
    return [{"length": len(row["body"])} for row in data or ()]
"""
FUNCTIONS = """
import json
import os
import pathlib
import time


def pre(data, context):
    return data and [(row.get("data") or row.get("body")) for row in data]


def join(data, context):
    if data:
        kinds = sorted({type(value).__name__ for value in data[0].values()})
        said = context.get_request_header(0, "X-Client")
        return [{
            "upper": data[0]["upper"].decode(), "length": json.loads(data[0]["length"])["length"], "kinds": kinds,
            "client": said, "model": context.model_name,
        }]


def tries(data, context):
    # It fails in its first execution for each word.
    if data:
        told = pathlib.Path(__file__).with_name("tried-" + bytes(data[0]["body"]).decode())
        if not told.exists():
            told.touch()
            raise ValueError("not yet")
        return ["at last"]


def fails(data, context):
    if data:
        raise ValueError("never")


def stands(data, context):
    # It waits until the file `go` lies in the directory that the request names.
    if data:
        gate = pathlib.Path(bytes(data[0]["body"]).decode(), "go")
        while not gate.exists():
            time.sleep(0.01)
        return ["done"]


def dies(data, context):
    if data:
        os._exit(3)
"""
#: `streams` answers in parts; with a directory in the request's body, until its client is gone.
STREAMING = """
import pathlib
import time

from ts.handler_utils.utils import send_intermediate_predict_response


def streams(data, context):
    if not data:
        return None
    say = lambda text: send_intermediate_predict_response([text], context.request_ids, "", 200, context)
    if not data[0]["body"]:
        say("one, ")
        say("two, ")
        return ["three"]
    here = pathlib.Path(bytes(data[0]["body"]).decode())
    (here / "begun").touch()
    try:
        while True:
            say("")
            time.sleep(0.01)
    finally:
        (here / "noticed").touch()


def after(data, context):
    if data:
        return [bytes(data[0]["body"])]
"""
DIAMOND = """
models:
  timeout-ms: 60000
  upper: {url: upper.mar, max-workers: 1, batch-size: 4}
  length: {url: length.mar}
dag:
  pre: [upper, length]
  upper: [join]
  length: [join]
"""
LEAVES = """
models: {upper: {url: upper.mar}, length: {url: length.mar}}
dag: {pre: [upper, length]}
"""
TRYING = """
models: {retry-attempts: 1}
dag: {pre: [tries]}
"""
FAILING = """
models: {retry-attempts: 0}
dag: {pre: [fails]}
"""
STANDING = """
models: {retry-attempts: 0, timeout-ms: 700}
dag: {stands: []}
"""
DYING = """
models: {retry-attempts: 0, timeout-ms: 60000}
dag: {pre: [dies]}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    store = tmp_path_factory.mktemp("store")
    wars = tmp_path_factory.mktemp("workflows")
    mar(store / "upper.mar", {"h.py": UPPER}, name="upper", handler="h.py")
    mar(store / "length.mar", {"h.py": LENGTH}, name="length", handler="h.py")
    mar(store / "broken.mar", {"h.py": "import nothing_of_this_name"}, name="broken", handler="h.py")
    for name, spec in {
        "diamond": DIAMOND, "leaves": LEAVES, "trying": TRYING, "failing": FAILING, "standing": STANDING,
        "dying": DYING, "half": "models: {broken: {url: broken.mar}}\ndag: {pre: [broken]}\n",
        "loop": "models: {}\ndag: {pre: [join], join: [pre]}\n",
    }.items():  # fmt: skip
        war(wars / f"{name}.war", spec, FUNCTIONS, workflowName=name)
    flags = "--enable-model-api", "--dt", f"--workflow-store={wars}"
    with torchserve_command(tmp_path_factory.mktemp("server"), store, "", *flags) as served:
        for name in ("diamond", "leaves", "trying"):
            reply = served.manage("POST", f"/workflows?url={name}.war")
            assert reply.json == {"status": f"Workflow {name} has been registered and scaled successfully."}
        yield served


def predict(served: TorchServe, name: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, object]:
    reply = served.ask("POST", f"/wfpredict/{name}", body, headers)
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    return reply.status, json.loads(reply.body)


def test_answers_come_together_by_the_names_of_their_nodes(served: TorchServe) -> None:
    status, answer = predict(served, "diamond", b"whale", {"X-Client": "me"})
    assert (status, answer) == (
        200,
        {"upper": "WHALE", "length": 5, "kinds": ["bytearray"], "client": "me", "model": "diamond__join"},
    )


def test_text_and_forms_reach_the_first_node_as_any_model(served: TorchServe) -> None:
    assert predict(served, "diamond", b"eel", {"Content-Type": "text/plain"})[1]["upper"] == "EEL"  # type: ignore[index]
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert predict(served, "diamond", b"data=ray", form)[1]["upper"] == "RAY"  # type: ignore[index]


def test_several_last_nodes_are_an_object(served: TorchServe) -> None:
    assert predict(served, "leaves", b"cod") == (200, {"upper": "COD", "length": {"length": 3}})


def test_many_clients_get_their_own_answers(served: TorchServe) -> None:
    words = [f"fish {number}" + "x" * number for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda word: predict(served, "diamond", word.encode())[1], words))
    assert [(each["upper"], each["length"]) for each in answers] == [  # type: ignore[index]
        (word.upper(), len(word)) for word in words
    ]


def test_a_node_is_tried_again_and_then_fails_with_its_name(served: TorchServe) -> None:
    reply = served.ask("POST", "/wfpredict/trying", b"once")
    assert (reply.status, reply.body) == (200, b"at last")
    register(served, "failing")
    assert predict(served, "failing", b"x") == fault(500, "InternalServerException", "Error executing fails")
    assert served.server.read_log(b"node 'fails' has failed 1 times")
    unregister(served, "failing")


def test_a_worker_that_dies_is_a_node_that_fails(served: TorchServe) -> None:
    register(served, "dying")
    assert predict(served, "dying", b"x") == fault(500, "InternalServerException", "Error executing dies")
    assert predict(served, "leaves", b"cod")[0] == 200
    unregister(served, "dying")


def test_a_node_that_takes_too_long_is_given_up(served: TorchServe, tmp_path: Path) -> None:
    register(served, "standing")
    refusal = fault(500, "InternalServerException", "Error executing stands")
    assert predict(served, "standing", str(tmp_path).encode()) == refusal
    (tmp_path / "go").touch()
    unregister(served, "standing")


def register(served: TorchServe, name: str) -> None:
    reply = served.manage("POST", f"/workflows?url={name}.war")
    assert reply.status == 200, reply.body


def unregister(served: TorchServe, name: str) -> None:
    reply = served.manage("DELETE", f"/workflows/{name}")
    assert (reply.status, reply.json) == (200, {"status": f'Workflow "{name}" unregistered'})
    reply = served.ask("POST", f"/wfpredict/{name}", b"x")
    assert (reply.status, reply.json) == fault(404, "WorkflowNotFoundException", f"Workflow not found: {name}")


def fault(code: int, kind: str, message: str) -> tuple[int, dict[str, object]]:
    return code, {"code": code, "type": kind, "message": message}


def test_workflows_are_listed_and_described(served: TorchServe) -> None:
    listed = served.manage("GET", "/workflows").json["workflows"]
    assert [each for each in listed if each["workflowName"] != "dying"] == [
        {"workflowName": name, "workflowUrl": f"{name}.war"} for name in ("diamond", "leaves", "trying")
    ]
    page = served.manage("GET", "/workflows?limit=1&next_page_token=1").json
    assert page == {"nextPageToken": "2", "workflows": [{"workflowName": "leaves", "workflowUrl": "leaves.war"}]}
    assert served.manage("GET", "/workflows/diamond").json == [
        {
            "workflowName": "diamond", "workflowUrl": "diamond.war", "minWorkers": 1, "maxWorkers": 1, "batchSize": 1,
            "maxBatchDelay": 50, "workflowDag": "{pre=[upper, length], upper=[join], length=[join]}",
        }
    ]  # fmt: skip
    # The models of nodes are models; functions are, too, but in no list, as in TorchServe.
    names = [each["modelName"] for each in served.manage("GET", "/models").json["models"]]
    assert names == ["diamond__length", "diamond__upper", "leaves__length", "leaves__upper"]
    (described,) = served.manage("GET", "/models/diamond__upper").json
    assert (described["modelUrl"], described["batchSize"]) == ("upper.mar", 4)
    reply = served.ask("POST", "/predictions/diamond__upper", b"plaice")
    assert (reply.status, reply.body) == (200, b"PLAICE")


CALLS: list[tuple[str, str, bytes | None, tuple[int, str, str]]] = [
    ("POST", "/workflows", None, (400, "BadRequestException", "Parameter url is required.")),
    ("POST", "/workflows?url=", None, (404, "WorkflowNotFoundException", "empty url")),
    (
        "POST", "/workflows?url=none.war", None,
        (404, "WorkflowNotFoundException", "Workflow not found in workflow store: none.war"),
    ),
    (
        "POST", "/workflows?url=diamond.war", None,
        (409, "ConflictStatusException", "Workflow diamond is already registered."),
    ),
    (
        "POST", "/workflows?url=loop.war", None,
        (400, "InvalidDAGException", "Not a valid DAG: pre → join → pre is a loop"),
    ),
    ("POST", "/workflows", b"[", (400, "BadRequestException", "The body must be a JSON object of the parameters.")),
    ("GET", "/workflows/none", None, (404, "WorkflowNotFoundException", "Workflow not found: none")),
    ("DELETE", "/workflows/none", None, (404, "WorkflowNotFoundException", "Workflow not found: none")),
    (
        "PUT", "/workflows/diamond", None,
        (405, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document."),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "expected"), CALLS, ids=lambda each: str(each)[:40])
def test_calls_that_are_refused(
    served: TorchServe, method: str, path: str, body: bytes | None, expected: tuple[int, str, str]
) -> None:
    headers = {"Content-Type": "application/json"} if body else {}
    reply = served.manage(method, path, body, headers)
    assert (reply.status, reply.json) == fault(*expected)


def test_a_workflow_with_a_node_that_cannot_be_loaded_leaves_nothing(served: TorchServe) -> None:
    reply = served.manage("POST", "/workflows?url=half.war")
    assert (reply.status, reply.json["type"]) == (500, "WorkflowException")
    beginning = "Workflow half has failed to register. Failures: [Failed to start workers for model half__broken"
    assert reply.json["message"].startswith(beginning)
    assert "nothing_of_this_name" in reply.json["message"]
    assert "half__" not in served.manage("GET", "/models").body.decode()
    assert predict(served, "half", b"x") == fault(404, "WorkflowNotFoundException", "Workflow not found: half")


def test_parameters_may_come_as_json_and_name_the_workflow(served: TorchServe) -> None:
    asked = json.dumps({"url": "leaves.war", "workflow_name": "other", "response_timeout": 9}).encode()
    reply = served.manage("POST", "/workflows", asked, {"Content-Type": "application/json"})
    assert reply.json == {"status": "Workflow other has been registered and scaled successfully."}
    assert predict(served, "other", b"cod")[0] == 200
    (described,) = served.manage("GET", "/models/other__upper").json
    assert described["responseTimeout"] == 9
    unregister(served, "other")


def test_a_client_that_hangs_up_cancels_what_its_workflow_has_begun(served: TorchServe, tmp_path: Path) -> None:
    here = war(tmp_path / "hang.war", "dag: {streams: [after]}", STREAMING, workflowName="hang")
    reply = served.manage("POST", f"/workflows?url={here.as_uri()}")
    assert reply.status == 200, reply.body
    reply = served.ask("POST", "/wfpredict/hang", b"")
    assert (reply.status, reply.body) == (200, b"one, two, three")  # parts, joined for the next node
    connection = http.client.HTTPConnection("127.0.0.1", served.inference_port, timeout=DEADLINE_S)
    connection.request("POST", "/wfpredict/hang", str(tmp_path).encode())
    wait_until((tmp_path / "begun").exists)
    connection.close()
    wait_until((tmp_path / "noticed").exists)
    unregister(served, "hang")
