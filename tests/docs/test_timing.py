"""docs/timing.md: its examples print what it shows, its table has every metric, and its limits are the code's."""

import os
import re
import subprocess
import sys
from pathlib import Path

from shoal.batcher.finished_requests import NUM_KEPT, NUM_WINDOWS, WINDOW_NS
from shoal.frontend.v2.debug import DEFAULT_LIMIT, MAX_LIMIT
from shoal.timing import MAX_STEPS, PHASES, QUEUE_PARTS
from tests.end_to_end.command_line import run_here
from tests.end_to_end.server import SAMPLES, only, serving_to_the_end
from tests.server_timing import from_header

PAGE = (Path(__file__).parents[2] / "docs" / "timing.md").read_text()


def test_the_examples_print_what_is_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    (asked, listed), (python, printed) = (
        re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL),
        re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)[0],
    )
    environ = {**os.environ, "SHOAL_CLIENT_SOCKET": path}
    with serving_to_the_end(SAMPLES, *only("simple_identity"), f"--client-socket={path}") as server:
        shell = asked.replace("localhost:8000", server.url)
        header = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
        assert {"receive", "parse", "queue", "compute", "send"} <= from_header(header.partition(": ")[2]).phases.keys()
        done = subprocess.run([sys.executable, "-c", python], env=environ, capture_output=True, text=True, check=False)
        assert (done.stderr, done.stdout) == ("", printed)
        top, curl = listed.replace("localhost:8000", server.url).strip().splitlines()
        shown = run_here(*top.split()[1:], f"--url=http://{server.url}")
        assert shown.returncode == 0
        assert "simple_identity" in shown.stdout
        assert (
            "simple_identity_0_0"
            in subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True).stdout
        )


def test_every_metric_is_described() -> None:
    described = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert set(described) >= {*PHASES, *[f"queue-{part}" for part in QUEUE_PARTS], "total", "batch", "ahead", "step"}


def test_the_limits_are_those_of_the_code() -> None:
    assert (NUM_WINDOWS * WINDOW_NS, NUM_KEPT, MAX_STEPS) == (5 * 60 * 10**9, 16, 32)
    assert f"`limit` ({DEFAULT_LIMIT}; at most {MAX_LIMIT} of either kind)" in PAGE
