"""Trace files as tests of ensembles and calls read them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from shoal.fault import VARIABLE
from tests.end_to_end.asking import infer
from tests.end_to_end.server import Server

POINTS = [
    "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
    "REQUEST_END",
]  # fmt: skip


#: An ensemble's steps have computed for it.
OWN_POINTS = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


#: A batcher whose look at the clock is old by the time it has read what has come.
OLD_LOOKS = {VARIABLE: "batcher.read:delay=0.003"}


def ask(server: Server, protocol: Any, model: str, request_id: str = "") -> None:
    infer(server, model, {"X": np.ones((1, 1), np.float32)}, protocol, request_id=request_id)


class Traced:
    """What a file says: of each trace its model, that of the trace it is a step of, its points and its request's id."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self.heads = [each for each in found if "model_name" in each]
        self.models = {each["id"]: each["model_name"] for each in self.heads}
        self.points: dict[int, dict[str, int]] = {each["id"]: {} for each in self.heads}
        for each in found:
            for point in each.get("timestamps", ()):
                self.points[each["id"]][point["name"]] = point["ns"]

    @property
    def tree(self) -> list[tuple[str, str]]:
        """In the order of the file."""
        return [(each["model_name"], self.models.get(each.get("parent_id", 0), "")) for each in self.heads]

    def names(self, model: str) -> list[str]:
        """The points of the traces of a model, HTTP's and gRPC's left out."""
        return [name for number, points in self.points.items() if self.models[number] == model
                for name in points if name in POINTS]  # fmt: skip

    def check_times(self) -> None:
        """Each trace's times rise, and a step lies within what it is a step of."""
        for each in self.heads:
            points = self.points[each["id"]]
            assert list(points.values()) == sorted(points.values())
            if "parent_id" in each:
                around = self.points[each["parent_id"]]
                assert around["REQUEST_START"] <= points["REQUEST_START"]
                assert points["REQUEST_END"] <= around["REQUEST_END"]


def traces(server: Server, file: Path) -> Iterator[Callable[[], Traced]]:
    """Traces what comes until what it yields is called, which reads the file."""
    with tritonclient.http.InferenceServerClient(server.url) as client:
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})

        def read() -> Traced:
            client.update_trace_settings(settings={"trace_level": ["OFF"]})
            return Traced(file)

        yield read
        client.update_trace_settings(settings={"trace_level": ["OFF"]})
        file.unlink()
