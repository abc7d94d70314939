"""The execution of a workflow: order, data, retries and time, on a clock that the test moves and random graphs."""

import random
from collections.abc import Mapping

import pytest

from shoal.errors import CancelledError, InternalError, ShoalError
from shoal.frontend.torchserve.workflow_run import Fields, Node, NodeFailedError, Part, graph_of, run


class Site:
    """Nodes that answer as the test says: in an order drawn at random, or never."""

    def __init__(self, answers: Mapping[str, list[bytes | ShoalError | None]], seed: int = 0) -> None:
        self._answers = {name: list(each) for name, each in answers.items()}
        self._random = random.Random(seed)
        self.now_s = 100.0
        self.started: list[tuple[str, Fields | None]] = []
        self.cancelled: list[str] = []
        self.open: dict[int, str] = {}
        self.most_open = 0
        self.ends = False

    def clock_s(self) -> float:
        return self.now_s

    def start(self, node: str, fields: Fields | None) -> int:
        self.started.append((node, fields))
        number = len(self.started)
        self.open[number] = node
        self.most_open = max(self.most_open, len(self.open))
        return number

    def next(self, limit_s: float) -> tuple[int, Part] | None:
        if self.ends:
            raise CancelledError("Request was cancelled")
        able = [number for number, node in self.open.items() if self._next(node) is not None]
        if not able:
            self.now_s += limit_s
            return None
        number = self._random.choice(able)
        node = self.open.pop(number)
        answer = self._next(node)
        if self._answers.get(node):
            self._answers[node].pop(0)
        if isinstance(answer, ShoalError):
            return number, Part(b"", answer, True)
        assert answer is not None
        return number, Part(answer, None, True)

    def _next(self, node: str) -> bytes | ShoalError | None:
        planned = self._answers.get(node)
        return node.encode() if planned is None else planned[0] if planned else node.encode()

    def cancel(self, number: int) -> None:
        node = self.open.pop(number)
        self.cancelled.append(node)
        if self._answers.get(node):
            self._answers[node].pop(0)


def graph(edges: Mapping[str, str], retries: int = 1, timeout_s: float = 10.0) -> dict[str, Node]:
    names = dict.fromkeys([*edges, *(each for following in edges.values() for each in following)])
    return {name: Node(name, tuple(edges.get(name, "")), retries, timeout_s) for name in names}


def test_a_node_gets_the_answer_before_it_or_those_of_several_by_name() -> None:
    site = Site({})
    assert run(graph({"a": "bc", "b": "d", "c": "d"}), site, site.clock_s) == {"d": b"d"}
    assert site.started[0] == ("a", None)
    assert sorted(site.started[1:3], key=str) == [("b", [("body", b"a")]), ("c", [("body", b"a")])]
    assert site.started[3] == ("d", [("b", b"b"), ("c", b"c")])
    assert site.most_open == 2


def test_a_single_node_and_several_last_ones() -> None:
    site = Site({})
    assert run(graph({"a": ""}), site, site.clock_s) == {"a": b"a"}
    assert run(graph({"a": "bcd"}), site, site.clock_s) == {"b": b"b", "c": b"c", "d": b"d"}


@pytest.mark.parametrize("seed", range(40))
def test_each_node_of_any_graph_is_executed_once_after_all_before_it(seed: int) -> None:
    drawn = random.Random(seed)
    names = [chr(ord("a") + number) for number in range(drawn.randint(2, 12))]
    # Each node but the first has a parent among those before it: one first node, no loop.
    edges: dict[str, str] = dict.fromkeys(names, "")
    for place, name in enumerate(names[1:], 1):
        for parent in drawn.sample(names[:place], drawn.randint(1, min(3, place))):
            edges[parent] += name
    site = Site({}, seed)
    made = graph(edges)
    last = {name for name in names if not edges[name]}
    assert run(made, site, site.clock_s) == {name: name.encode() for name in last}
    order = [node for node, _ in site.started]
    assert sorted(order) == names
    for parent, following in edges.items():
        assert all(order.index(parent) < order.index(each) for each in following)
    assert not site.open


def test_a_node_that_fails_is_tried_again_as_often_as_it_may_be() -> None:
    fault = InternalError("no")
    site = Site({"b": [fault, fault]})
    assert run(graph({"a": "b"}, retries=2), site, site.clock_s) == {"b": b"b"}
    assert [node for node, _ in site.started] == ["a", "b", "b", "b"]
    assert site.started[1:] == [("b", [("body", b"a")])] * 3
    site = Site({"b": [fault, fault, fault]})
    with pytest.raises(NodeFailedError, match="node 'b' has failed 3 times: no") as failed:
        run(graph({"a": "b"}, retries=2), site, site.clock_s)
    assert (failed.value.node, failed.value.cause) == ("b", fault)


def test_a_node_without_an_answer_in_its_time_is_cancelled_and_tried_again() -> None:
    site = Site({"a": [None]})
    assert run(graph({"a": ""}, timeout_s=3), site, site.clock_s) == {"a": b"a"}
    assert (site.cancelled, site.now_s) == (["a"], 103)
    site = Site({"b": [None, None]})
    with pytest.raises(NodeFailedError, match="no answer within 3 s"):
        run(graph({"a": "bc"}, timeout_s=3), site, site.clock_s)
    assert site.now_s == 106


def test_a_request_that_cannot_be_submitted_counts_as_an_attempt() -> None:
    class Full(Site):
        def start(self, node: str, fields: Fields | None) -> int:
            super().start(node, fields)
            raise InternalError("full")

    site = Full({})
    with pytest.raises(NodeFailedError, match="failed 2 times: full"):
        run(graph({"a": ""}), site, site.clock_s)
    assert len(site.started) == 2


def test_a_client_that_hangs_up_ends_the_workflow() -> None:
    site = Site({})
    site.ends = True
    with pytest.raises(CancelledError):
        run(graph({"a": "b"}), site, site.clock_s)


def test_answers_in_parts_are_joined() -> None:
    class Streaming(Site):
        def next(self, limit_s: float) -> tuple[int, Part] | None:
            (number,) = self.open
            if self.now_s < 103:
                self.now_s += 1
                return number, Part(b"x", None, False)
            del self.open[number]
            return number, Part(b"", None, True)

    site = Streaming({})
    assert run(graph({"a": ""}), site, site.clock_s) == {"a": b"xxx"}


def test_descriptions_are_a_graph_once_all_are_there() -> None:
    described = [
        {"name": "a", "next": ["b"], "retries": 1, "timeout_ms": 1500},
        {"name": "b", "next": [], "retries": 0, "timeout_ms": 10},
    ]
    assert graph_of(described) == {"a": Node("a", ("b",), 1, 1.5), "b": Node("b", (), 0, 0.01)}
    assert graph_of(described[:1]) is None
    assert graph_of([]) is None
