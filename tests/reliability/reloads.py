"""The rows of reloads and of the end: under verified load no accepted request fails."""

import time

from tests.end_to_end.asking import fetch
from tests.end_to_end.changes import explicit, reload, write_model
from tests.end_to_end.server import DEADLINE_S
from tests.end_to_end.traffic import MODEL, Traffic
from tests.reliability.row import Course

RATE = 200.0
#: The default of --exit-timeout-secs.
EXIT_TIMEOUT_S = 30.0


def run(course: Course) -> None:
    """Reload, every tenth time with a configuration that is refused; then end the server under load."""
    repository = write_model(course.directory / "models")
    config = repository / "m" / "config.pbtxt"
    with explicit(repository) as server:
        refusals = []
        with Traffic(server, RATE) as outcome:
            assert outcome.is_steady.wait(DEADLINE_S), outcome.faults
            for _ in range(course.pick(1, 10)):
                reload(server, repository, 9)
                config.write_text(MODEL + "\nmax_batch_size: nonsense")
                refusals.append(fetch(server.http_port, "/v2/repository/models/m/load", {}).status)
                config.write_text(MODEL)
        told = f"{outcome.num_right} right, {len(outcome.faults)} failed; invalid configurations: {refusals}"
        is_refused = all(status >= 400 for status in refusals)
        course.found("failed", told, outcome.faults, is_met=is_refused and not outcome.faults)
        with Traffic(server, RATE) as outcome:
            assert outcome.is_steady.wait(DEADLINE_S), outcome.faults
            start_s = time.monotonic()
            code = server.stop()
            end_s = time.monotonic()
        # A request that was sent after the signal may find its connection closed: it was never accepted.
        lost = [sent_s for sent_s in outcome.lost_s if sent_s < start_s]
        other = [fault for fault in outcome.faults if not fault.startswith("connection: ")]
        told = f"{outcome.num_right} right, {len(lost)} lost that were sent before, exit code {code}"
        course.found("stop", told, other, is_met=not lost and not other and code == 0)
        course.found("time", f"{end_s - start_s:.1f} s", is_met=end_s - start_s <= EXIT_TIMEOUT_S)
