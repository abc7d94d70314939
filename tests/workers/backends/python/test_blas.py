"""blas.py: in a process that was forked where BLAS had one thread, it has as many as it is told."""

import subprocess
import sys

SCRIPT = """
import os
import numpy as np
from shoal.workers.backends.python import blas
child = os.fork()
if child == 0:
    def num_threads():
        np.ones((500, 500)) @ np.ones((500, 500))
        return len(os.listdir("/proc/self/task"))
    before = num_threads()
    blas.use_threads(3)
    print(before, num_threads(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(any("openblas" in line for line in open("/proc/self/maps")))
"""


def test_threads_of_a_forked_process() -> None:
    command = ["env", "OPENBLAS_NUM_THREADS=1", sys.executable, "-c", SCRIPT]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert run.stdout in ("1 3\nTrue\n", "1 1\nFalse\n"), run.stdout
