"""Servers on a real cluster of Ray, behind Ray Serve (on_cluster.py). Ray is heavy, and not among what tests need."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

#: Generous: a cluster of Ray has a dozen processes, which share the cores with other tests.
DEADLINE_S = 600.0

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="NOT CHECKED: servers behind Ray Serve, since Ray is not installed (pip install 'shoal[ray]')",
)


def scene(name: str) -> dict[str, Any]:
    """What a cluster of its own shows. Its folder's path is short: Ray makes sockets in it."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.ray.on_cluster", name, folder]
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def test_haproxy_sends_requests_to_the_servers_and_an_update_refuses_none() -> None:
    facts = scene("direct")
    assert facts["reached the server itself"]
    assert facts["administration"] == 403  # every client comes from this host: that makes none an administrator
    assert facts["infer"] == [42]
    assert facts["stream"] == [200, 3]
    assert facts["servers"] == 2
    # HAProxy is reloaded, and may close a client's connection at the moment at which it is used again: that is told.
    assert facts["update"] == []
    assert facts["answers during the update"] > 1000
    assert facts["updated"] == "second"
    # What the killed server had: one request of each client at most, and what came until HAProxy had noticed.
    assert facts["killed"] <= 8, facts["failures of the kill"]
    assert facts["left"] == 0


def test_serve_s_own_proxy_handles_and_datasets_reach_servers_and_one_that_does_not_start_says_why() -> None:
    facts = scene("proxied")
    assert facts["relayed"] == [200, True]
    assert facts["handle"] == [2]
    assert facts["predicted"] == [1] * 40
    assert facts["columns"] == ["INPUT0", "OUTPUT0", "other"]
    assert facts["broken"] == "DEPLOY_FAILED"
    assert "absent" in facts["reason"]
