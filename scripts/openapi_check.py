"""Asks every operation of a running server's /openapi.json, by requests that schemathesis makes of their schemas: right
ones, ones at the bounds, and ones that break a rule.

    scripts/openapi-check [--examples 50] [--seed 1]

An answer that is not of the documented form, an error of any status without a sentence, no answer within ten seconds,
and a server that logs a traceback or does not end in order, are failures: the script exits with 1 then.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.end_to_end.server import SAMPLES, only, serving

PROGRAM = Path(__file__).parents[1] / ".venv-schemathesis" / "bin" / "schemathesis"
#: One model of each kind of operation: tensors of numbers, of text, decoupled, with sequences.
MODELS = ("simple", "simple_string", "simple_identity", "repeat_int32", "simple_sequence")
#: Not `not_a_server_error`: a body that is no JSON gets 500 with Triton's sentence, as from Triton.
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
FLAGS = (
    "--phases=examples,coverage,fuzzing", "--workers=1", "--suppress-health-check=all", "--continue-on-failure",
    "--no-color",
    "--exclude-path-regex=repeat_int32/generate_stream",  # the model waits for as many ms as a request says
)  # fmt: skip
#: Seconds between two looks at the server's log, which must not fill its pipe.
PAUSE_S = 0.5


def main(argv: Sequence[str]) -> int:
    """Serve the models, and run schemathesis against them; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/openapi-check", description=__doc__)
    parser.add_argument("--examples", type=int, default=50, help="requests of each operation at most (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn by chance (default: 1)")
    given = parser.parse_args(argv)
    with serving(SAMPLES, *only(*MODELS)) as server:
        address = f"http://{server.url}/openapi.json"
        asked = [f"--checks={CHECKS}", f"--max-examples={given.examples}", f"--seed={given.seed}", *FLAGS]
        with (
            tempfile.TemporaryDirectory(prefix="openapi-check-") as folder,  # schemathesis writes where it runs
            subprocess.Popen([str(PROGRAM), "run", address, *asked], cwd=folder) as running,
        ):
            while running.poll() is None:
                server.read_on()
                with suppress(subprocess.TimeoutExpired):
                    running.wait(PAUSE_S)
        ended = server.stop()
        has_traceback = b"Traceback" in server.log
    if has_traceback or ended:
        print(server.log.decode(errors="replace"))
        print(f"the server has logged a traceback, or ended with {ended}")
    return int(bool(running.returncode or ended or has_traceback))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
