"""Models are reloaded, replaced and scaled again and again while verified requests come in: not one may notice.

`scripts/changes` is the long form, which also says how long requests took; test_changes.py the short one.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.end_to_end.asking import fetch
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, serving, wait_until
from tests.end_to_end.traffic import MODEL, Outcome, Traffic

#: What the long form does. Twenty scalings are over within seconds, and p99.9 is one or two requests; so more follow.
RELOADS, VERSIONS, SCALINGS, MORE_SCALINGS, QUIET_S = 100, 20, 20, 200, 20.0


def post(server: Server, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask an endpoint of the model repository; fails where it does not say 200."""
    reply = fetch(server.http_port, f"/v2/repository/{path}", body or {})
    assert reply.status == 200, (path, reply)
    return reply.json if reply.body else None


def write_model(repository: Path) -> Path:
    """A repository with version 1 of the model that traffic is for."""
    add_model(repository, "m", MODEL)
    return repository


@contextmanager
def explicit(repository: Path) -> Iterator[Server]:
    """A server whose model can be reloaded and scaled."""
    with serving(repository, "--model-control-mode=explicit", "--load-model=m") as server:
        yield server


def reload(server: Server, repository: Path, times: int) -> None:
    """Load the model anew, as often as said: each time its files are newer."""
    for number in range(times):
        os.utime(repository / "m" / "1", ns=(number + 1, number + 1))
        post(server, "models/m/load")
        server.read_on()


def add_versions(server: Server, repository: Path, count: int) -> None:
    """Put new versions there, one after the other; each is the only one that serves before the next comes."""
    for number in range(2, count + 2):
        (repository / "m" / str(number)).mkdir()
        wait_for(server, f"{number}", "READY")
        wait_for(server, f"{number - 1}", "UNAVAILABLE")


def wait_for(server: Server, version: str, state: str) -> None:
    """Until the index says so."""

    def rows() -> list[tuple[Any, ...]]:
        return [(row["name"], row.get("version"), row.get("state")) for row in post(server, "index")]

    wait_until(lambda: ("m", version, state) in rows(), rows)


def scale(server: Server, times: int) -> None:
    """From one instance to four, and back."""
    for _ in range(times):
        for count in (4, 1):
            described = post(server, "models/m/instances", {"count": count, "wait": True})
            assert len(described["versions"][0]["instances"]) == count, described
            server.read_on()


def describe(name: str, outcome: Outcome) -> str:
    """One line of the report."""
    times = " ".join(f"{label} {1e3 * outcome.latency_s(share):.1f} ms" for label, share in QUANTILES)
    return f"{name:<28} {outcome.num_right} right, {len(outcome.faults)} failed, {times}"


QUANTILES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))


def main() -> int:
    """The long form. Exit status 1 if a request failed."""
    parser = argparse.ArgumentParser(
        prog="scripts/changes",
        description="Reload a model, add versions of it, scale it up and down, and stop the server, under verified "
        "requests at a steady rate: none may fail.",
    )
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second; default 500")
    rate = parser.parse_args().rate
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as directory:
        repository = write_model(Path(directory))
        with explicit(repository) as server:
            with Traffic(server, rate, steady_after=int(rate * QUIET_S)) as outcomes["quiet"]:
                assert outcomes["quiet"].is_steady.wait(QUIET_S + DEADLINE_S)
            with Traffic(server, rate) as outcomes[f"{RELOADS} reloads"]:
                reload(server, repository, RELOADS)
            for scalings in (SCALINGS, MORE_SCALINGS):
                with Traffic(server, rate) as outcomes[f"{scalings} x 1 to 4 to 1"]:
                    scale(server, scalings)
            exit_code = server.stop()
        flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
        with serving(repository, *flags) as server:
            with Traffic(server, rate) as outcomes[f"{VERSIONS} new versions, polled"]:
                add_versions(server, repository, VERSIONS)
            exit_code |= server.stop()
    for name, outcome in outcomes.items():
        print(describe(name, outcome), *outcome.faults[:3], sep="\n  ")
    return bool(exit_code or any(outcome.faults for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
