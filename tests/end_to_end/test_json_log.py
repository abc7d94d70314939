"""`--log-format json`, as the unit and the image have it: every line is an object, those of models' prints, too."""

import json
import os
import signal
import socket
from pathlib import Path

from tests.end_to_end.asking import fetch
from tests.end_to_end.lifecycle import write_model
from tests.end_to_end.server import DEADLINE_S, serving, worker_of
from tests.end_to_end.traffic import MODEL

TALKER = """
import sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        print("printed \\x1b[2J by a model")
        print("complained", file=sys.stderr)
        pb_utils.Logger.log_warn("by Triton's logger")
        raise ValueError("as it was told")
"""
BAD = b"GET /what HTTP/1.1\r\nHost: a\r\nBad\x1b[31mHeader: 1\r\n\r\n"


def test_every_line_is_an_object(tmp_path: Path) -> None:
    model = write_model(tmp_path, "talker", 1, config=MODEL.replace("identity", "python"))
    (model / "1" / "model.py").write_text(TALKER)
    with serving(tmp_path, "--log-verbose=1", environment={"SHOAL_LOG_FORMAT": "json"}) as server:
        asked = {"inputs": [{"name": "A", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}
        assert fetch(server.http_port, "/v2/models/talker/infer", asked).status == 500
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.http_port), DEADLINE_S) as connection:
                connection.sendall(BAD)
                assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
        assert server.read_log(b"of which there is no line")
        worker = worker_of(server, "talker_0_0")
        os.kill(worker, signal.SIGKILL)
        assert server.read_log(b"is up again")
        assert server.stop() == 0
    assert b"\x1b" not in server.log
    lines = [json.loads(line) for line in server.log.splitlines()]
    for line in lines:
        assert {"time", "level", "process", "pid", "message"} <= line.keys()
    of = {line["message"]: line for line in lines}
    printed = of["printed \x1b[2J by a model"]
    assert (printed["model"], printed["version"], printed["instance"]) == ("talker", "1", "talker_0_0")
    assert (printed["pid"], printed["stream"], printed["process"]) == (worker, "stdout", "worker")
    assert of["complained"]["stream"] == "stderr"
    assert of["by Triton's logger"]["instance"] == "talker_0_0"
    assert {"supervisor", "worker", "road"} <= {line["process"] for line in lines}
    refused = [line for line in lines if line["message"].startswith("Invalid request")]
    assert 0 < len(refused) < 20
