"""docs/rollout.md: its commands do what it says on a real server, and its defaults are the code's."""

import json
import re
import shlex
import subprocess
import threading
from pathlib import Path

import numpy as np

from shoal.cli.rollout import EXIT_ROLLED_BACK
from shoal.rollout_settings import DEFAULT_EVERY, DEFAULT_GUARDS, DEFAULT_MIN_REQUESTS, DEFAULT_STEPS, read_plan
from tests.end_to_end.asking import fetch
from tests.end_to_end.command_line import run_here
from tests.end_to_end.server import LOOK_AGAIN_S, Server, serving_to_the_end

PAGE = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def run(server: Server, command: str) -> tuple[int, str]:
    """The exit code of a command of the page, and what it prints."""
    done = run_here(*shlex.split(command)[1:], "--url", f"http://{server.url}")
    return done.returncode, done.stdout + done.stderr


def test_the_migration_does_what_is_said(tmp_path: Path) -> None:
    samples, *prepare, serve, shadow, compared, begin, show, pause, resume, promote, abort, unpin = COMMANDS
    assert len(prepare) == 3
    assert run_here(*shlex.split(samples)[1:], folder=tmp_path).returncode == 0
    subprocess.run(["sh", "-ec", "\n".join(prepare)], cwd=tmp_path, check=True)
    assert serve.startswith("shoal serve models ")
    flags = serve.split()[3:]
    models = [f"{flag}={value}" for flag, value in zip(flags[::2], flags[1::2], strict=True)]
    asked = {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 512], "data": np.zeros(512).tolist()}]}
    with serving_to_the_end(tmp_path / "models", *models) as server:
        is_over = threading.Event()
        statuses = set[int]()

        def ask() -> None:
            while not is_over.wait(LOOK_AGAIN_S):
                statuses.add(fetch(server.http_port, "/v2/models/mlp/infer", asked).status)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert run(server, shadow)[0] == 0
            assert "mlp: version 2 shadows 1, 100 % of the requests\n" in run(server, compared)[1]
            quick = begin.replace("--every 10m", "--every 5requests --min-requests 5").replace("p99=+10%", "p99=+5s")
            assert quick.count("requests") == 2
            code, said = run(server, quick)
            assert code == 0, said
            assert said.startswith("running: version 2 gets 1 %, version 1 the rest (step 1 of 4)\n")
            assert "version 2 is promoted\n" in said
            assert "requests that name no version: version 1: 0 %, version 2: 100 %" in run(server, show)[1]
            assert run(server, unpin)[0] == 0
            for command in (begin + " --detach", pause, resume, abort):
                assert run(server, command)[0] == 0, command
            assert "rolled back to version 1: it was aborted by request" in run(server, show)[1]
            assert run(server, begin + " --detach")[0] == 0
            assert run(server, promote)[0] == 0
        finally:
            is_over.set()
            asking.join()
        assert statuses == {200}


def test_what_the_page_says_of_defaults_and_the_exit_code_is_so() -> None:
    for option, default in (("steps", DEFAULT_STEPS), ("every", DEFAULT_EVERY), ("guard", DEFAULT_GUARDS)):
        assert f"| `--{option}` | `{default}` |" in PAGE
    assert f"| `--min-requests` | `{DEFAULT_MIN_REQUESTS}` |" in PAGE
    assert f"returns {EXIT_ROLLED_BACK}" in PAGE


def test_the_request_by_http_is_a_plan() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert read_plan(json.loads(example)).members().keys() == json.loads(example).keys()
