"""frontend/gunicorn_main.py: an arbiter whose workers lose no signal, however early it comes."""

import subprocess
import sys

import pytest

DEADLINE_S = 60
#: A worker that gets its signal between the fork and its first own handler, and serves until it ends.
PROGRAM = """
import os, select, signal, socket
from gunicorn.app.base import BaseApplication
from shoal.frontend import arbiter
from shoal.frontend.{module} import {name}

kept = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] for _ in range(3)]
os.environ |= zip(("SHOAL_RECEIVE_FD", "SHOAL_SEND_FD", "SHOAL_RETURNED_FD"), [str(each.fileno()) for each in kept])

class Worker({name}):
    def load_wsgi(self):
        pass

    def run(self):
        while self.alive:
            select.select([self.PIPE[0]], [], [], 1.0)

class Application(BaseApplication):
    def load_config(self):
        self.cfg.set("bind", "127.0.0.1:0")
        self.cfg.set("control_socket_disable", True)
        self.cfg.set("graceful_timeout", 1000)
        self.cfg.set("post_fork", lambda arbiter, worker: os.kill(os.getpid(), signal.{signal}))
        self.cfg.set("child_exit", lambda arbiter, worker: os.kill(os.getpid(), signal.SIGKILL))

    def load(self):
        pass

arbiter.WORKER_CLASSES["road"] = Worker
os.environ["SHOAL_FRONT_ENDS"] = '{{"road": 1}}'
os.environ["SHOAL_ROAD_LISTENER_FDS"] = "0"
os.environ["SHOAL_PROGRESS_FD"] = str(os.memfd_create("progress"))
read_fd, go_fd = os.pipe()
os.environ["SHOAL_GO_FD"] = str(read_fd)
arbiter.FrontEndArbiter(Application()).run()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGQUIT"])
@pytest.mark.parametrize(("module", "worker"), [("lane", "LaneWorker"), ("road.road", "RoadWorker")])
def test_a_signal_right_after_the_fork_ends_the_worker(module: str, worker: str, name: str) -> None:
    """The arbiter kills itself when the first worker has ended."""
    program = PROGRAM.format(module=module, name=worker, signal=name)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=DEADLINE_S, check=False)
    assert (ended.returncode, b"Traceback" in ended.stderr) == (-9, False), ended.stderr
