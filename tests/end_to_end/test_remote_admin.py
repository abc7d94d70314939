"""The callers that may change the server: those on this machine, and on others where the operator lets them in."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.asking import fetch
from tests.end_to_end.server import SAMPLES, serving_to_the_end

LOAD = "/v2/repository/models/simple/load"
LOGGING, TRACES = "/v2/logging", "/v2/trace/setting"
REGISTER = "/v2/systemsharedmemory/region/theirs/register"
UNREGISTER = "/v2/systemsharedmemory/unregister"
SCALE = "/models/simple?min_worker=3&max_worker=2"


@pytest.fixture(scope="module")
def own_address() -> str:
    """An address of this machine that is not loopback: who connects to it comes from it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.1", 9))
        except OSError:  # a sandbox without a network; which callers are remote is tested in test_local_callers.py, too
            pytest.skip("NOT CHECKED: remote callers, since this machine has no address but loopback")
        return str(unsent.getsockname()[0])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "simple").symlink_to(SAMPLES / "simple")
    return tmp_path


@pytest.mark.parametrize(("flags", "status"), [([], 403), (["--allow-remote-admin"], 0)], ids=["default", "allowed"])
def test_other_machines(repository: Path, own_address: str, flags: list[str], status: int) -> None:
    with serving_to_the_end(repository, "--http-address=0.0.0.0", "--allow-client-shm", *flags) as server:
        for address, expected in (("127.0.0.1", 0), (own_address, status)):
            # Let in, they hear that nothing can be loaded, and that there cannot be three of at most two.
            assert fetch(server.http_port, LOAD, method="POST", address=address).status == (expected or 503)
            assert fetch(server.http_port, SCALE, method="PUT", address=address).status == (expected or 400)
            body: dict[str, Any]
            for path, body, allowed in (
                (LOGGING, {"log_info": True}, 200),
                (TRACES, {"trace_rate": "1000"}, 200),
                (REGISTER, {"key": "/there_is_none", "offset": 0, "byte_size": 8}, 500),
                (UNREGISTER, {}, 200),
            ):
                assert fetch(server.http_port, path, body, address=address).status == (expected or allowed)
            assert fetch(server.http_port, LOGGING, address=address).status == 200
            assert fetch(server.http_port, TRACES, address=address).status == 200
            assert fetch(server.http_port, "/v2/models/simple/ready", method="GET", address=address).status == 200
