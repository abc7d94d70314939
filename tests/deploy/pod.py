"""A pod's container as it stands in a manifest, run for test_pod.py in new namespaces of mounts and of the network:

    unshare --mount --net python -m tests.deploy.pod CONTAINER REPOSITORY SHARED_MEMORY_MIB

CONTAINER is the container's JSON. Its /dev/shm is a tmpfs of that size, a control group has its limits of memory and
cores, where this machine lets one be made, and REPOSITORY takes the place of the path that the arguments name. Prints
what was seen as JSON.
"""

import ctypes
import fcntl
import http.client
import json
import os
import shlex
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.deploy.limits import Limits
from tests.end_to_end.server import LOOK_AGAIN_S

DEADLINE_S = 120.0
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_PR_SET_CHILD_SUBREAPER = 36


def main(container: dict[str, Any], repository: str, shared_memory_mib: int) -> dict[str, Any]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))
    mount("-t", "tmpfs", "-o", f"size={shared_memory_mib}m", "tmpfs", "/dev/shm")
    [location] = [each.partition("=")[2] for each in container["args"] if each.startswith("--model-repository=")]
    if not Path(location).is_dir():
        # The machine's root directory stays as it is: the path of models is the one argument that differs.
        arguments = [each.replace(location, repository) for each in container["args"]]
    else:
        arguments = list(container["args"])
        mount("--bind", repository, location)
    program = f"from shoal.cli import {container['command'][0]} as run; raise SystemExit(run())"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    try:
        limits = Limits(container["resources"]["limits"], f"shoal-pod-{os.getpid()}")
    except OSError as error:
        sys.stderr.write(f"NOT CHECKED: the limits of the pod, since no control group can be made: {error}\n")
        limits = None
    command = [sys.executable, "-c", program, *arguments]
    started = command if limits is None else limits.around(command)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans stay in the groups until they are waited for
    with subprocess.Popen(started, env=environment, stderr=2) as server:
        seen: dict[str, Any] = {"refused before": not probe(container, "startupProbe")}
        end_s = time.monotonic() + DEADLINE_S
        while not probe(container, "startupProbe"):
            assert server.poll() is None
            assert time.monotonic() < end_s
            time.sleep(LOOK_AGAIN_S)
        seen["live"], seen["ready"] = probe(container, "livenessProbe"), probe(container, "readinessProbe")
        seen["metrics"] = asked(port(container, "metrics"), "/metrics") == 200
        usage = os.statvfs("/dev/shm")
        seen["shared memory"] = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        stop = container["lifecycle"]["preStop"]["exec"]["command"]
        begin_s = time.monotonic()
        seen["preStop"] = subprocess.run(stop, check=False).returncode
        seen["seconds of preStop"] = time.monotonic() - begin_s
        seen["ready until the end of preStop"] = probe(container, "readinessProbe")
        server.terminate()
        seen["exit code"] = server.wait(DEADLINE_S)
    seen["left in shared memory"] = os.listdir("/dev/shm")
    seen["limits"] = limits and limits.facts()
    with suppress(ChildProcessError):
        while True:
            os.wait()
    if limits is not None:
        limits.close()
    return seen


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def port(container: dict[str, Any], name: str) -> int:
    [found] = [each["containerPort"] for each in container["ports"] if each["name"] == name]
    return int(found)


def probe(container: dict[str, Any], kind: str) -> bool:
    """Whether the kubelet would find that this probe succeeds."""
    get, limit_s = container[kind]["httpGet"], container[kind].get("timeoutSeconds", 1)
    return 200 <= asked(port(container, get["port"]), get["path"], limit_s) < 400


def asked(at: int, path: str, limit_s: float = 10.0) -> int:
    """The status of a GET; 0 if there is none in time."""
    connection = http.client.HTTPConnection("127.0.0.1", at, timeout=limit_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    given, folder, size = sys.argv[1:]
    sys.stderr.write(shlex.join(json.loads(given)["args"]) + "\n")
    sys.stdout.write(json.dumps(main(json.loads(given), folder, int(size))) + "\n")
