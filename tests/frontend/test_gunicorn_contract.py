"""What Shoal uses of gunicorn beside its documented interface; gunicorn is pinned to one major version."""

import inspect
import os
import re
import socket
import sys
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import gunicorn
import gunicorn.util
import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.config import KNOWN_SETTINGS, Config
from gunicorn.http import errors, wsgi
from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import ParseException
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import SocketUnreader
from gunicorn.http.wsgi import Response
from gunicorn.workers.base import Worker
from gunicorn.workers.gthread import TConn, ThreadWorker

from shoal.frontend.gunicorn_main import Application, Heartbeat

ROOT = Path(__file__).parents[2]
#: The names that frontend/gunicorn_conf.py sets; it cannot be imported outside an arbiter.
SETTINGS = [
    match[1]
    for match in re.finditer(
        r"^([a-z_]+)(?:: [^=]+)? = ", (ROOT / "frontend" / "gunicorn_conf.py").read_text(), re.MULTILINE
    )
]


def as_installed(module: ModuleType) -> Any:
    """A second copy of a module: once imported, frontend/road/road.py has replaced a function of the first."""
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    copy = module_from_spec(module.__spec__)
    module.__spec__.loader.exec_module(copy)
    return copy


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_it_is_the_major_version_that_was_read() -> None:
    assert gunicorn.version_info[0] == 27


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (Worker.load_wsgi, ["self"]),
        (Worker.notify, ["self"]),
        (ThreadWorker.init_process, ["self"]),
        (ThreadWorker.run, ["self"]),
        (ThreadWorker.set_accept_enabled, ["self", "enabled"]),
        (ThreadWorker.enqueue_req, ["self", "conn"]),
        (ThreadWorker.handle, ["self", "conn"]),
        (ThreadWorker.handle_request, ["self", "req", "conn"]),
        (ThreadWorker.on_pending_socket_readable, ["self", "conn", "client"]),
        (ThreadWorker.finish_request, ["self", "conn", "fs"]),
        (Request.parse, ["self", "unreader"]),
        (ThreadWorker._cap_keepalive, ["self", "deadline"]),
        (TConn.__init__, ["self", "cfg", "sock", "client", "server"]),
        (TConn.init, ["self"]),
        (ChunkedReader.parse_chunk_size, ["self", "unreader", "data"]),
        (ChunkedReader.read_into, ["self", "unreader", "buf"]),
        (as_installed(gunicorn.util).write_error, ["sock", "status_int", "reason", "mesg"]),
        (gunicorn.util.write_nonblock, ["sock", "data", "chunked"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_functions_take_what_they_are_given(function: Any, names: list[str]) -> None:
    assert parameters(function) == names


def test_bytes_can_be_given_back_and_looked_at() -> None:
    left, right = socket.socketpair()
    with left, right:
        unreader = SocketUnreader(left)
        unreader.unread(b"GET ")
        assert unreader.buf.getvalue() == b"GET "


def test_a_parser_s_requests_are_of_the_class_it_names() -> None:
    assert RequestParser.mesg_class is Request
    assert "self.mesg_class(" in inspect.getsource(RequestParser.__next__)


def test_the_application_can_see_the_connection_and_whether_its_answer_has_begun() -> None:
    assert '"gunicorn.socket": sock' in inspect.getsource(wsgi.default_environ)
    left, right = socket.socketpair()
    with left, right:
        assert Response(None, left, Config()).headers_sent is False


def test_broken_bodies_raise_one_family_of_errors() -> None:
    assert issubclass(errors.InvalidChunkSize, ParseException)
    assert issubclass(errors.ChunkMissingTerminator, ParseException)
    assert issubclass(errors.NoMoreData, OSError)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_known(name: str) -> None:
    assert name in {setting.name for setting in KNOWN_SETTINGS} | set(Config().settings)


def test_hooks_run_before_the_sockets_and_after_the_fork() -> None:
    start, spawn = inspect.getsource(Arbiter.start), inspect.getsource(Arbiter.spawn_worker)
    assert start.index("on_starting") < start.index("init_signals") < start.index("create_sockets")
    assert spawn.index("os.fork()") < spawn.index("post_fork") < spawn.index("init_process")


def test_the_arbiter_s_methods_do_what_ours_rests_on() -> None:
    spawn, stop = inspect.getsource(Arbiter.spawn_worker), inspect.getsource(Arbiter.stop)
    assert "self.worker_class(self.worker_age, self.pid, self.LISTENERS," in spawn
    assert "self.WORKERS[pid] = worker" in spawn
    assert "self.worker_class = self.cfg.worker_class" in inspect.getsource(Arbiter.setup)
    assert "self.kill_workers(sig)" in stop
    reap = inspect.getsource(Arbiter.reap_workers)
    assert reap.index("self.WORKERS.pop(wpid") < reap.index("raise HaltServer")
    assert "self.manage_workers()" in inspect.getsource(Arbiter.run)


def test_a_stopping_worker_ends_once_it_has_no_connections() -> None:
    _, stopping = inspect.getsource(ThreadWorker.run).split("self._cap_keepalive(")
    assert stopping.index("self.cfg.graceful_timeout") < stopping.index("while self.nr_conns > 0:")
    assert stopping.index("while self.nr_conns > 0:") < stopping.index("self.murder_pending()")


def test_a_worker_s_sign_of_life_is_a_file_without_a_name() -> None:
    assert "self.tmp = WorkerTmp(cfg)" in inspect.getsource(Worker.__init__)
    heartbeat = Heartbeat(Config())
    try:
        assert os.readlink(f"/proc/self/fd/{heartbeat.fileno()}").startswith("/memfd:")
        os.utime(heartbeat.fileno(), (0, 0))
        heartbeat.notify()
        assert heartbeat.last_update() > 0
    finally:
        heartbeat.close()


def test_no_file_of_the_working_directory_stands_in_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gunicorn", "application:create()"])
    path = list(sys.path)
    assert Application(prog="gunicorn").app_uri == "application:create()"
    assert sys.path == path
