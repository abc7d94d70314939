"""Clients that ask a cluster without a pause, each over a connection of its own, and check every answer.

Each request has numbers that no other has, so that an answer to another's request is found.
"""

import http.client
import itertools
import json
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

#: Statuses that tell a client to ask again: Serve's HAProxy says 500 for 502, 503 and 504.
RETRYABLE = frozenset({429, 500, 502, 503, 504})
DEADLINE_S = 120.0
#: Before a client that could not connect asks the next node.
BETWEEN_NODES_S = 0.05

_numbers = itertools.count(1)


class Request(NamedTuple):
    """A request, and what is right of its answer."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    is_right: Callable[[bytes], bool]


def json_request(model: str = "simple") -> Request:
    """Sixteen sums and differences as JSON."""
    number = next(_numbers)
    left, right = [number + each for each in range(16)], [number] * 16
    tensors = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": [data]}
        for name, data in (("INPUT0", left), ("INPUT1", right))
    ]

    def is_right(body: bytes) -> bool:
        outputs = {each["name"]: each["data"] for each in json.loads(body)["outputs"]}
        return bool(
            outputs["OUTPUT0"] == [2 * number + each for each in range(16)] and outputs["OUTPUT1"] == [*range(16)]
        )

    body = json.dumps({"id": str(number), "inputs": tensors}).encode()
    return Request(f"/v2/models/{model}/infer", {"Content-Type": "application/json"}, body, is_right)


def binary_request(model: str = "simple") -> Request:
    """The same with binary tensors, which an answer has too."""
    number = next(_numbers)
    left, right = struct.pack("<16i", *range(number, number + 16)), struct.pack("<16i", *[number] * 16)
    head = json.dumps(
        {
            "inputs": [
                {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
                for name in ("INPUT0", "INPUT1")
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    ).encode()
    expected = struct.pack("<16i", *(2 * number + each for each in range(16)))
    fields = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return Request(f"/v2/models/{model}/infer", fields, head + left + right, lambda body: body.endswith(expected))


def stream_request() -> Request:
    """Three answers of a decoupled model, as events."""
    number = next(_numbers) % 2**30
    body = json.dumps({"IN": [number, number + 1, number + 2], "DELAY": [0, 0, 0], "WAIT": 0}).encode()

    def is_right(body: bytes) -> bool:
        events = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: ")]
        return [json.loads(event)["OUT"] for event in events] == [number, number + 1, number + 2]

    return Request("/v2/models/repeat/generate_stream", {"Content-Type": "application/json"}, body, is_right)


#: Each client takes the next one; one in four opens a connection for each request.
KINDS: tuple[Callable[[], Request], ...] = (json_request, binary_request, json_request, stream_request)


class Outcome(NamedTuple):
    """What became of a request that was not answered rightly."""

    kind: str  # a status, "closed", "wrong" or the class of an error
    seconds: float  # from the first byte sent
    detail: str
    at_s: float  # since the load's begin


class Load:
    """So many clients, while the context lasts. `addresses` has the nodes' at any time."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        port: int,
        num_clients: int,
        kinds: Sequence[Callable[[], Request]] = KINDS,
    ) -> None:
        self._addresses = addresses  # each client has one, and takes the next where it cannot connect
        self._port = port
        self._kinds = kinds
        self._is_over = threading.Event()
        # Written by one client each.
        self._right = [0] * num_clients
        self._slowest_s = [0.0] * num_clients
        self.outcomes = list[Outcome]()  # appended by all
        self.num_refused = 0  # connections, where nothing listened or the node was lost
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in range(num_clients)]
        self._began_s = 0.0

    def __enter__(self) -> "Load":
        self._began_s = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _connection(self, turn: int) -> http.client.HTTPConnection:
        addresses = self._addresses()
        return http.client.HTTPConnection(addresses[turn % len(addresses)], self._port, timeout=DEADLINE_S)

    @property
    def num_right(self) -> int:
        return sum(self._right)

    def facts(self) -> dict[str, Any]:
        """What is written down of the load."""
        failed = [each for each in self.outcomes if each.kind != "wrong"]
        return {
            "right": self.num_right,
            "wrong": len(self.outcomes) - len(failed),
            "failed": len(failed),
            "connections refused": self.num_refused,
            "by kind": dict(Counter(each.kind for each in self.outcomes)),
            "longest failure, seconds": round(max((each.seconds for each in failed), default=0.0), 2),
            "longest answer, seconds": round(max(self._slowest_s), 2),
            "seconds": round(time.monotonic() - self._began_s, 1),
            "examples": [
                f"{each.at_s:.1f} s: {each.kind} after {each.seconds:.3f} s: {each.detail}"
                for each in self.outcomes[:12]
            ],
        }

    def _run(self, index: int) -> None:
        make = self._kinds[index % len(self._kinds)]
        opens_each = index % 4 == 2
        turn = index
        connection = self._connection(turn)
        while not self._is_over.is_set():
            request = make()
            try:
                if opens_each or connection.sock is None:
                    connection.close()
                    connection.connect()
            except OSError:  # nothing was accepted, and another node is asked
                self.num_refused += 1
                turn += 1
                connection = self._connection(turn)
                self._is_over.wait(BETWEEN_NODES_S)
                continue
            begin_s = time.monotonic()
            try:
                connection.request("POST", request.path, request.body, dict(request.headers))
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                kind = (
                    "closed"
                    if isinstance(error, (ConnectionError, http.client.IncompleteRead))
                    else type(error).__name__
                )
                self._note(kind, begin_s, f"{request.path.split('/')[3]} {error!r}")
                connection.close()
                continue
            if response.status == 200 and self._is_right(request, body):
                self._right[index] += 1
                self._slowest_s[index] = max(self._slowest_s[index], time.monotonic() - begin_s)
            elif response.status in RETRYABLE:
                self._note(str(response.status), begin_s, repr(body[:120]))
            else:
                self._note("wrong", begin_s, f"{response.status} {body[:200]!r}")

    def _note(self, kind: str, begin_s: float, detail: str) -> None:
        now_s = time.monotonic()
        self.outcomes.append(Outcome(kind, now_s - begin_s, detail, now_s - self._began_s))

    @staticmethod
    def _is_right(request: Request, body: bytes) -> bool:
        try:
            return request.is_right(body)
        except (ValueError, KeyError, TypeError):
            return False
