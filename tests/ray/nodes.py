"""A cluster of Ray of several nodes on this machine, each in a network of its own, behind Serve's HAProxys.

    unshare --net python -m tests.ray.rolling_update

The process that makes it is on the head; each node has an address, a raylet, workers and an HAProxy of its own. Root is
needed. A node's processes are those in its network: losing the node ends all of them at once, as a power cut does.
"""

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.ray.on_cluster import DEADLINE_S, asked, until

#: Of the network between nodes; the head has the first address.
NETWORK = "10.203.0"
PORT, GRPC_PORT, GCS_PORT = 8000, 9000, 6379
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # on cores that others use, too
}


class HaproxyLog:
    """The lines that the HAProxys log of requests which did not end as they should; received by UDP."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((f"{NETWORK}.1", 0))
        self.target = f"{NETWORK}.1:{self._socket.getsockname()[1]}"
        self.lines = list[str]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            line = self._socket.recv(65536).decode(errors="replace")
            if " ---- " not in line and "http_frontend" in line:
                self.lines.append(f"{time.time():.3f} {line.strip()}")


class Node:
    """A node that is not the head: its network, held by a process, and its `ray start`."""

    def __init__(self, number: int) -> None:
        self.address = f"{NETWORK}.{number}"
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = network_of("self")
        until(lambda: network_of(self._holder.pid) not in ("", own), "a network of its own")
        self.network = network_of(self._holder.pid)
        inside, outside = f"in{number}", f"out{number}"
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", str(self._holder.pid))
        ip("link", "set", outside, "master", "nodes", "up")
        ip("address", "add", f"{self.address}/24", "dev", inside, within=self._holder.pid)
        for link in (inside, "lo"):
            ip("link", "set", link, "up", within=self._holder.pid)
        self._ray: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start Ray, unless it runs: it gives up a start that takes half a minute."""
        if self._ray is None or self._ray.poll() is not None:
            started = ray_start(self.address, f"--address={NETWORK}.1:{GCS_PORT}")
            command = [*nsenter(self._holder.pid), *started]
            self._ray = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def lose(self) -> int:
        """End all of its processes at once. Returns their number."""
        found = in_network(self.network)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                kill(pid, number)
        for process in filter(None, (self._ray, self._holder)):
            process.wait()
        return len(found)


class Nodes:
    """The cluster; `close` ends it, and says what is left."""

    def __init__(self, folder: str, num_nodes: int = 3, environment: Mapping[str, str] | None = None) -> None:
        if network_of("self") == network_of(1):
            raise SystemExit("Run this in a network of its own: unshare --net …")
        self.segments_before = set(os.listdir("/dev/shm"))
        self._num_nodes = 1
        ip("link", "set", "lo", "up")
        ip("link", "add", "nodes", "type", "bridge")
        ip("address", "add", f"{NETWORK}.1/24", "dev", "nodes")
        ip("link", "set", "nodes", "up")
        self.log = HaproxyLog()
        scratch = Path(folder, "haproxy")
        os.environ.update(
            {
                **ENVIRONMENT,
                "RAY_SERVE_HAPROXY_LOG_TARGET": self.log.target,
                "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(scratch / "haproxy.cfg"),
                "RAY_SERVE_HAPROXY_SOCKET_PATH": str(scratch / "admin.sock"),
                "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(scratch),
                "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(scratch / "server-state"),
                "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(scratch / "metrics.sock"),
                "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), os.getcwd()])),
                **(environment or {}),
            }
        )
        os.chdir(folder)  # Ray lets workers import from the driver's directory first, before another copy of Shoal
        head = ["--head", f"--port={GCS_PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
        self._start_head = ray_start(f"{NETWORK}.1", *head)
        self._head = subprocess.Popen(self._start_head, stdout=subprocess.DEVNULL)
        self.workers = list[Node]()
        self.ray: Any = importlib.import_module("ray")
        self.serve: Any = importlib.import_module("ray.serve")
        until(self._connect, "a connection to the head")
        for _ in range(num_nodes - 1):
            self.add_node()
        until(self.has_all_nodes, "all nodes")
        servicer = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"
        self.serve.start(
            proxy_location="EveryNode",
            http_options={"host": "0.0.0.0", "port": PORT},
            grpc_options={"port": GRPC_PORT, "grpc_servicer_functions": [servicer]},
        )

    def _connect(self) -> bool:
        if self._head.poll() is not None:  # it gives up a start that takes half a minute
            self._head = subprocess.Popen(self._start_head, stdout=subprocess.DEVNULL)
        if not listens(f"{NETWORK}.1", GCS_PORT):
            return False
        try:
            self.ray.init(
                address=f"{NETWORK}.1:{GCS_PORT}", _node_ip_address=f"{NETWORK}.1", log_to_driver=False,
                logging_level="error",
            )  # fmt: skip
        except (ConnectionError, RuntimeError, TimeoutError):
            return False
        return True

    # --- questions ---

    @property
    def addresses(self) -> list[str]:
        """Where the nodes' HAProxys listen."""
        return [f"{NETWORK}.1", *(each.address for each in self.workers)]

    def has_all_nodes(self) -> bool:
        """Whether Ray has the nodes that were started; one whose start was given up is started again."""
        for each in self.workers:
            each.start()
        live = {each["NodeManagerAddress"] for each in self.ray.nodes() if each["Alive"]}
        return live == set(self.addresses)

    def servers(self) -> list[int]:
        """The processes of Shoal's supervisors, on all nodes."""
        return [pid for pid in self.processes() if command(pid).startswith("shoal supervisor")]

    def processes(self) -> list[int]:
        """All processes of the cluster."""
        networks = {network_of("self"), *(each.network for each in self.workers)}
        return [pid for network in networks for pid in in_network(network) if pid != os.getpid()]

    def nodes_of_servers(self) -> int:
        """On how many nodes there are servers."""
        return len({network_of(pid) for pid in self.servers()})

    def num_ready(self) -> int:
        """The replicas that run, by Serve's status."""
        applications = self.serve.status().applications
        deployments = [each for one in applications.values() for each in one.deployments.values()]
        return sum(each.replica_states.get("RUNNING", 0) for each in deployments)

    def is_up(self, address: str) -> bool:
        """Whether a node's HAProxy sends to a server."""
        try:
            return asked(PORT, "GET", "/v2/health/ready", address=address)[0] == 200
        except OSError:
            return False

    # --- what happens to it ---

    def lose_node(self) -> str:
        """End a node that is not the head, as a power cut does."""
        node = self.workers.pop(0)
        return f"{node.address}, {node.lose()} processes"

    def add_node(self) -> None:
        """Start a node."""
        self._num_nodes += 1
        self.workers.append(Node(self._num_nodes))

    def reload_haproxy(self, which: int) -> None:
        """Reload the HAProxy of a node, as a change of replicas does."""
        util: Any = importlib.import_module("ray.util")
        names = [each["name"] for each in util.list_named_actors(all_namespaces=True)]
        names = sorted(each for each in names if "PROXY_ACTOR" in each and "fallback" not in each)
        actor = self.ray.get_actor(names[which % len(names)], namespace="serve")
        self.ray.get(actor._reload_haproxy.remote(), timeout=60)

    def close(self) -> dict[str, Any]:
        """End the cluster. Returns what is left of it: processes, and segments of shared memory."""
        with contextlib.suppress(Exception):
            self.serve.shutdown()
        self.ray.shutdown()
        servers = [f"{command(pid)[:80]}" for pid in self.processes() if command(pid).startswith("shoal")]
        for node in self.workers:
            node.lose()
        self._head.terminate()
        self._head.wait()
        with contextlib.suppress(TimeoutError):
            until(lambda: not self.processes(), "the end of all processes")
        left = [command(pid)[:100] for pid in self.processes()]
        for pid in self.processes():
            kill(pid)
        segments = sorted(set(os.listdir("/dev/shm")) - self.segments_before)
        return {"servers left": servers, "processes left": left, "segments left": segments}


@contextlib.contextmanager
def cluster(num_nodes: int = 3, environment: Mapping[str, str] | None = None) -> Iterator[Nodes]:
    """A cluster in a folder of its own, whose path is short, since Ray makes sockets in it."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    nodes = None
    try:
        nodes = Nodes(folder, num_nodes, environment)
        yield nodes
    except BaseException as error:
        sys.stderr.write(f"{error!r}; Ray's logs are kept in {folder}\n")
        if nodes is not None:
            sys.stderr.write(f"{nodes.close()}\n")
        for pid in in_network(network_of("self")):
            if pid != os.getpid():
                kill(pid)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def ray_start(address: str, *flags: str) -> list[str]:
    """The command of a node."""
    program = "from ray.scripts.scripts import main; raise SystemExit(main())"
    fixed = ["--block", f"--node-ip-address={address}", "--num-cpus=2", f"--object-store-memory={80 * 2**20}"]
    return [sys.executable, "-c", program, "start", *fixed, "--disable-usage-stats", *flags]


def ip(*words: str, within: int = 0) -> None:
    """Run iproute2's `ip`, in this network or in that of a process."""
    subprocess.run([*(nsenter(within) if within else []), "ip", *words], check=True)


def nsenter(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net"]


def network_of(pid: int | str) -> str:
    """What identifies the network of a process; empty for one that has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def in_network(network: str) -> list[int]:
    """The processes in a network."""
    return [int(each) for each in os.listdir("/proc") if each.isdecimal() and network_of(each) == network]


def listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def command(pid: int) -> str:
    """The command line of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


__all__ = ["DEADLINE_S", "Nodes", "cluster", "kill", "until"]
