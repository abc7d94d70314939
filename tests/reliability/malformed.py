"""The rows of malformed requests: the exact status, again and again, and no memory that stays."""

import os
from pathlib import Path

from tests.end_to_end.http_cases.malformed import FRAMING, HEADS, PATHS, Refused
from tests.end_to_end.http_cases.models import FLAGS, write_models
from tests.end_to_end.http_cases.sending import send
from tests.end_to_end.server import Server, descendants, serving, title
from tests.reliability.row import Course

#: Of any one request: so many, between which the front ends may grow by so much.
REPEATS, MAX_GROWTH_BYTES = 100, 1 << 20


def run(course: Course) -> None:
    """Send every case; then every case a hundred times (short: five), and look at the front ends' memory."""
    repeats = course.pick(5, REPEATS)
    repository = course.directory / "models"
    repository.mkdir()
    with serving(write_models(repository), *FLAGS) as server:
        cases = FRAMING + HEADS + PATHS
        wrong: list[str] = []
        for _ in range(3):
            wrong += [fault for case in cases if (fault := fault_of(server, case))]
        growth: dict[str, int] = {}
        pids = front_ends(server)
        for case in cases:
            before = own_bytes(pids)
            wrong += [fault for _ in range(repeats) if (fault := fault_of(server, case))]
            growth[case.id] = own_bytes(pids) - before
            server.read_on()
        if front_ends(server) != pids:
            wrong.append("a front end has died")
        told = f"{len(cases)} requests, each {repeats + 3} times, {len(wrong)} other answers"
        course.found("status", told, wrong, is_met=not wrong)
        worst = max(growth, key=lambda each: growth[each])
        print(sorted(growth.items(), key=lambda each: each[1])[-8:])
        # A handful of requests shows the allocator's steps, not a growth.
        judged = sum(growth.values()) if course.is_short else growth[worst]
        course.found(
            "growth",
            f"worst {growth[worst] / (1 << 20):.2f} MiB for {repeats} of {worst!r}; all together "
            f"{sum(growth.values()) / (1 << 20):.2f} MiB for {len(cases) * repeats}",
            is_met=judged <= MAX_GROWTH_BYTES,
        )
        assert server.stop() == 0


def fault_of(server: Server, case: Refused) -> str:
    """What is wrong with the answer, or nothing."""
    reply = send(server, case.sent, case.fin)
    is_right = (reply.status, reply.closed) == (case.status, case.closes)
    return "" if is_right else f"{case.id}: {reply.status}, not {case.status}"


def front_ends(server: Server) -> list[int]:
    """The pids of lanes and road."""
    return [pid for pid in descendants(server.process.pid) if title(pid) in ("shoal http", "shoal road")]


def own_bytes(pids: list[int]) -> int:
    """What these processes have of their own: resident pages that are no file's and not shared."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in pids:
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
        total += (resident - shared) * page
    return total
