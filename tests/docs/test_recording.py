"""docs/recording.md: its commands do what it says on a real server, and its limits are the code's."""

import re
import shlex
from pathlib import Path

import numpy as np

from shoal.recorder.folder import MAX_DEATHS
from shoal.recorder.recorded import Recording
from shoal.recorder.recorder import KEPT_NS, MAX_KEPT_NBYTES
from shoal.recording_settings import RecordLimits, RecordRule, duration_s, share, size
from shoal.shm.byte_ring import MAX_PARTS
from shoal.supervisor.processes.ring_readers import RING_NBYTES
from tests.end_to_end.asking import infer
from tests.end_to_end.command_line import run_here
from tests.end_to_end.server import SAMPLES, Server, only, serving_to_the_end

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def run(server: Server, command: str, folder: Path) -> str:
    """Run a command of the page in a directory with `recordings` and `models`; returns what it prints."""
    words = shlex.split(command)[1:]
    if words[0] == "bench":
        words += ["--window", "0.05", "--warm-up", "0"]
    done = run_here(*words, folder=folder, SHOAL_URL=f"http://{server.url}")
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_the_commands_do_what_is_said(tmp_path: Path) -> None:
    serve, begin, end, tell, _, run_one, *rest = COMMANDS
    assert serve.startswith("shoal serve models --record recordings --record-config models=simple,text_*")
    assert len(rest) == 9
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "STATE_DIRECTORY": ""}
    recordings = tmp_path / "state" / "shoal" / "recordings"
    (tmp_path / "recordings").symlink_to(recordings)
    (tmp_path / "models").symlink_to(SAMPLES)
    with serving_to_the_end(SAMPLES, *only("simple", "add_sub"), environment=state) as server:
        assert "nothing is recorded" in run(server, tell, tmp_path)
        said = run(server, begin.replace("--sample 0.1", "--sample 1"), tmp_path)
        assert str(recordings) in said
        assert "simple: 100 % of the batches" in said
        row = np.arange(16, dtype=np.int32).reshape(1, 16)
        for _ in range(3):
            infer(server, "simple", {"INPUT0": row, "INPUT1": row})
        while not recordings.exists() or len(list(Recording(recordings))) < 3:
            assert infer(server, "add_sub", {name: np.ones(4, np.float32) for name in ("INPUT0", "INPUT1")})
        assert "nothing is recorded" in run(server, end, tmp_path)
        for command in (run_one.replace("#17", "#2"), *rest):
            run(server, command, tmp_path)
        assert {path.name for path in tmp_path.glob("*.*")} == {"load.json", "request.npz", "replay.html"}
        assert {each.model for each in Recording(recordings)} == {"simple"}
        assert len(list(Recording(recordings))) == 3  # not the replays: the recording had ended


def test_the_limits_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (?:`([^`]*)`)? ?\|", PAGE, re.MULTILINE))
    limits, rule = RecordLimits(), RecordRule()
    assert rows.keys() == {"models", "sample", "max-size", "max-age", "redact", "headers"}
    assert ((rows["models"],), share(rows["sample"])) == (rule.models, rule.sample)
    assert (size(rows["max-size"]), duration_s(rows["max-age"])) == (limits.max_bytes, limits.max_age_s)
    assert (KEPT_NS, MAX_KEPT_NBYTES, MAX_DEATHS) == (10 * 10**9, 32 << 20, 16)
    assert (RING_NBYTES, RING_NBYTES // MAX_PARTS) == (64 << 20, 16 << 20)
