"""docs/command_line.md: its commands run against the samples, and print what it shows."""

import re
import subprocess
from pathlib import Path

from tests.end_to_end.command_line import shoal_in
from tests.end_to_end.server import Server

ROOT = Path(__file__).parents[2]
#: A fenced command, and the fenced output if one follows it.
SHOWN = re.compile(r"```sh\n((?:(?!```).)*)```(?:\n+```text\n((?:(?!```).)*)```)?", re.DOTALL)


def test_every_command_prints_what_is_shown(samples: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "command_line.md").read_text().replace("/tmp/models", f"{tmp_path}/models")
    environment = {**shoal_in(tmp_path / "bin"), "SHOAL_CLIENT_SOCKET": samples.client_socket}
    commands = SHOWN.findall(page)
    assert len(commands) > 8
    for command, output in commands:
        # `infer` finds the server by its socket; the others are told where it is.
        url = {} if "infer" in command else {"SHOAL_URL": samples.url}
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=ROOT,
            env=environment | url,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        wanted = (0, 2) if "doctor" in command else (0,)  # 2: something of this machine is bad
        assert done.returncode in wanted, done.stdout + done.stderr
        assert output in ("", done.stdout)
