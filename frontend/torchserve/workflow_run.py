"""The execution of a workflow: a node begins once all nodes before it have answered. Several may run at a time. Pure.

A node's data depend on how many nodes are before it:

    none           the request's own data
    one            {"body": its answer}
    several        {node: its answer, …}

A node that fails, or has not answered in its time, is tried again, up to `retries` times; then the workflow fails.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shoal.errors import ShoalError, UnavailableError


class Node(NamedTuple):
    """A node of a workflow's graph, and the nodes that take its answer (`next`)."""

    name: str
    next: tuple[str, ...]
    retries: int
    timeout_s: float


class Part(NamedTuple):
    """A reply to a node's request: bytes of the node's answer, or an error."""

    body: bytes
    error: ShoalError | None
    is_final: bool


#: The data of a node that has nodes before it: names and answers.
Fields = Sequence[tuple[str, bytes]]


class Work(Protocol):
    """The requests of a workflow's nodes (`_Nodes` in workflow_predictions.py)."""

    def start(self, node: str, fields: Fields | None) -> int:
        """Submit a node's request; returns its number. `fields` is None for a first node. Raises ShoalError."""
        ...

    def next(self, limit_s: float) -> tuple[int, Part] | None:
        """Wait for the next reply; None after `limit_s`. Raises ShoalError if the workflow is to be given up."""
        ...

    def cancel(self, number: int) -> None:
        """Cancel a request; no reply to it comes any more."""
        ...


class NodeFailedError(UnavailableError):
    """A node has failed as often as it may be tried; `cause` is its last error."""

    def __init__(self, node: str, num_attempts: int, cause: ShoalError) -> None:
        super().__init__(f"node '{node}' has failed {num_attempts} times: {cause}")
        self.node = node
        self.cause = cause


class _Attempt(NamedTuple):
    node: Node
    number: int  # of the attempt, from 1 on
    fields: Fields | None
    end_s: float
    parts: list[bytes]


def run(graph: Mapping[str, Node], work: Work, clock_s: Callable[[], float]) -> dict[str, bytes]:
    """Execute a graph; returns the answers of the graph's last nodes, by name. Raises NodeFailedError, and the errors
    of `work.next`; the calling code then cancels open requests."""
    parents: dict[str, list[str]] = {name: [] for name in graph}
    for name, node in graph.items():
        for each in node.next:
            parents[each].append(name)
    answers: dict[str, bytes] = {}
    executing: dict[int, _Attempt] = {}

    def begin(node: Node, fields: Fields | None, attempt: int) -> None:
        while True:
            try:
                number = work.start(node.name, fields)
            except ShoalError as error:
                if attempt > node.retries:
                    raise NodeFailedError(node.name, attempt, error) from error
                attempt += 1
                continue
            executing[number] = _Attempt(node, attempt, fields, clock_s() + node.timeout_s, [])
            return

    def fail(attempt: _Attempt, error: ShoalError) -> None:
        if attempt.number > attempt.node.retries:
            raise NodeFailedError(attempt.node.name, attempt.number, error) from error
        begin(attempt.node, attempt.fields, attempt.number + 1)

    for name in graph:
        if not parents[name]:
            begin(graph[name], None, 1)
    while executing:
        first = min(executing.items(), key=lambda each: each[1].end_s)
        found = work.next(max(0.0, first[1].end_s - clock_s()))
        if found is None:
            late = executing.pop(first[0])
            work.cancel(first[0])
            fail(late, UnavailableError(f"no answer within {late.node.timeout_s:g} s (timeout-ms)"))
            continue
        number, part = found
        attempt = executing[number]
        attempt.parts.append(part.body)
        if part.error is not None:
            del executing[number]
            if not part.is_final:
                work.cancel(number)
            fail(attempt, part.error)
        elif part.is_final:
            del executing[number]
            name = attempt.node.name
            answers[name] = b"".join(attempt.parts)
            for each in attempt.node.next:
                if all(parent in answers for parent in parents[each]):
                    begin(graph[each], _fields(parents[each], answers), 1)
    return {name: answers[name] for name, node in graph.items() if not node.next}


def _fields(parents: Sequence[str], answers: Mapping[str, bytes]) -> Fields:
    if len(parents) == 1:
        return [("body", answers[parents[0]])]
    return [(name, answers[name]) for name in parents]


def graph_of(descriptions: Sequence[Mapping[str, Any]]) -> dict[str, Node] | None:
    """The graph of nodes with these descriptions (repository/torchserve/workflow_store.py); None if some nodes are
    missing, since the workflow is being registered or removed."""
    graph = {
        each["name"]: Node(each["name"], tuple(each["next"]), each["retries"], each["timeout_ms"] / 1000)
        for each in descriptions
    }
    return graph if graph and all(each in graph for node in graph.values() for each in node.next) else None
