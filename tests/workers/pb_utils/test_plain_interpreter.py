"""The package in an interpreter that has numpy and nothing else of ours."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import c_python_backend_utils
import triton_python_backend_utils as pb_utils
assert c_python_backend_utils.Tensor is pb_utils.Tensor
pb_utils.Logger.log_warn("a line")
pb_utils.Logger.log_verbose("not this one")
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("shoal", "msgpack", "orjson", "flask")))
"""


def test_it_loads_the_datatypes_and_the_errors_and_nothing_more() -> None:
    command = [sys.executable, "-c", SCRIPT, str(ROOT)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["shoal", "shoal.datatypes", "shoal.errors"], run.stderr
    assert run.stderr == "W <string>:7] a line\n"
