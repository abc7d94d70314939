"""docs/operations.md: its limits are the flags' defaults, and its commands do what it says."""

import re
import signal
import subprocess
from pathlib import Path

from shoal.cli.flags import FLAGS
from shoal.options import ServerOptions
from tests.end_to_end.command_line import run_here
from tests.end_to_end.server import SAMPLES, only, serving_to_the_end

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_limits_are_those_of_the_flags() -> None:
    rows = re.findall(r"^\| `--([\w-]+)` \| (\S+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    flags = {flag.name: flag for flag in FLAGS}
    assert len(rows) >= 20
    for name, default, text in rows:
        assert (default, text) == (str(getattr(ServerOptions(), flags[name].option)), flags[name].text), name


def test_its_signals_and_its_commands() -> None:
    text = PAGE.read_text()
    (line,) = re.findall(r"```text\n(SIGHUP: .*)\n```", text)
    commands = re.findall(r"^(shoal models|curl -s localhost:8000/v2/health/reasons|shoal doctor)$", text, re.MULTILINE)
    assert len(commands) == 3
    with serving_to_the_end(SAMPLES, *only("simple")) as server:
        # The page names the process by its title, which no other test's server may share here: by its pid.
        server.process.send_signal(signal.SIGHUP)
        assert server.read_log(line.encode())
        assert server.read_log(b"not read again: the command line")
        for command in commands:
            if command == "shoal doctor":
                done = run_here("doctor", "--help")  # what it finds is of the machine
            elif command == "shoal models":
                done = run_here("models", f"--url=http://{server.url}")
            else:
                words = command.replace("localhost:8000", server.url).split()
                done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, command
