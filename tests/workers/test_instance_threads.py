"""workers/instance_threads.py: a thread that cannot join the supervisor ends the process of its instance."""

import subprocess
import sys
from pathlib import Path

#: A process without a free descriptor, as a model's open files may leave it.
PROGRAM = """
import os, resource
from shoal.control import Listener
from shoal.workers.instance_threads import InstanceThreads

os.environ["SHOAL_CONTROL"] = Listener.create().address
threads = InstanceThreads(lambda _channel: None)
resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
threads.start(7)
threads.join()
print("goes on")
"""


def test_without_a_descriptor_for_its_connection_the_process_ends() -> None:
    """The supervisor waited for the instance until the time for the load was over."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert "a thread of the worker has failed, and the process ends" in ended.stderr
