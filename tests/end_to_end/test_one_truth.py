"""One truth: what the lane answers, the road answers alike, to every case of the table.

`TE: trailers` is a header that the lane leaves to the road, and that changes nothing else. The answers themselves are
held to the table by test_http_table.py.
"""

from collections.abc import Iterator

import pytest

from tests.end_to_end.http_cases import against_the_model, answered, refused, repository, routes
from tests.end_to_end.http_cases.case import Case
from tests.end_to_end.server import Server
from tests.end_to_end.ways import Way, took_the_road

CASES = [*routes.CASES, *answered.CASES, *refused.CASES, *against_the_model.CASES, *repository.CASES]
#: All that a client may look at; the rest (Date, Server, Connection) is whose answer it is.
HEADERS = (
    "Content-Type",
    "Content-Length",
    "Inference-Header-Content-Length",
    "Content-Encoding",
    "Accept-Encoding",
    "Allow",
    "Retry-After",
)


@pytest.fixture(scope="module")
def lane(every_kind: Server) -> Iterator[Way]:
    way = Way(every_kind)
    yield way
    way.connection.close()


@pytest.fixture(scope="module")
def road(every_kind: Server) -> Iterator[Way]:
    way = Way(every_kind, TE="trailers")
    yield way
    way.connection.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_lane_and_road_agree(lane: Way, road: Way, case: Case) -> None:
    told = []
    # The third finds the lane with whatever it remembers of the first.
    for way in (lane, road, lane):
        response = way.ask(case)
        told.append((response.status, response.read(), [response.getheader(name) for name in HEADERS]))
        assert took_the_road(response) or way is not road
        assert response.will_close == case.closes
    assert told[0] == told[1] == told[2]


def test_most_cases_are_the_lanes(lane: Way) -> None:
    """Else the two ways were one. What asks the supervisor takes the road."""
    num_on_the_road = 0
    for case in CASES:
        response = lane.ask(case)
        num_on_the_road += took_the_road(response)
        response.read()
    assert num_on_the_road < len(CASES) / 5
