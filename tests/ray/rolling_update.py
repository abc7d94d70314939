"""Rolling updates of a repository and of Shoal's version under load, on a cluster of three nodes.

    unshare --net python -m tests.ray.rolling_update [--requests 50000] [--clients 8] [--drain-seconds 30]

Replicas are replaced until so many requests have been answered: by turns the other repository, the other version, and
both back. Prints what was seen as JSON, and exits with 1 if a request failed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shoal.version import __version__
from tests.ray.clients import Load
from tests.ray.nodes import PORT, Nodes, cluster, until
from tests.ray.on_cluster import SAMPLES, asked

ROOT = Path(__file__).parents[2]
MODELS = ("simple", "repeat")
NUM_REPLICAS = 3
NEWER = "0.2.1"
#: At least: the repository, then the version.
NUM_UPDATES = 2


def other_version(folder: Path) -> str:
    """A copy of Shoal whose version is another, as the path that Python finds it by."""
    shutil.copytree(ROOT / "shoal", folder / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "shoal" / "version.py").write_text(f'__version__ = "{NEWER}"\n')
    return str(folder)


def repository(folder: Path) -> str:
    for model in MODELS:
        shutil.copytree(SAMPLES / model, folder / model)
    return str(folder)


def application(location: str, path: str = "") -> Any:
    import shoal.ray

    environment = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}} if path else {}
    return shoal.ray.deployment(
        location, num_replicas=NUM_REPLICAS, num_cpus=0.5, exit_timeout_s=30, ray_actor_options=environment
    )


def version_at(address: str) -> str:
    """The version of Shoal that answers there."""
    return str(json.loads(asked(PORT, "GET", "/ui/figures", address=address)[1])["server"]["version"])


def run(nodes: Nodes, num_requests: int, num_clients: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"updates": []}
    with tempfile.TemporaryDirectory(prefix="shoal-update-") as name:
        folder = Path(name)
        first, second = repository(folder / "first"), repository(folder / "second")
        newer = other_version(folder / "newer")
        plans = [(first, ""), (second, ""), (second, newer), (first, newer)]
        nodes.serve.run(application(*plans[0]), name="shoal")
        until(lambda: nodes.num_ready() == NUM_REPLICAS, "all replicas")
        until(lambda: all(map(nodes.is_up, nodes.addresses)), "all HAProxys")
        facts["nodes with servers"] = nodes.nodes_of_servers()
        with Load(lambda: nodes.addresses, PORT, num_clients) as load:
            turn = 0
            while load.num_right < num_requests or turn < NUM_UPDATES:
                turn += 1
                before, begin_s, right = set(nodes.servers()), time.monotonic(), load.num_right
                nodes.serve.run(application(*plans[turn % len(plans)]), name="shoal")
                until(lambda: not before & set(nodes.servers()), "the end of the servers of before")  # noqa: B023
                facts["updates"].append(
                    {"seconds": round(time.monotonic() - begin_s, 1), "answered meanwhile": load.num_right - right,
                     "version": version_at(nodes.addresses[-1]),
                     "expected version": NEWER if plans[turn % len(plans)][1] else __version__,
                     "failed so far": len(load.outcomes)}
                )  # fmt: skip
                sys.stderr.write(f"{facts['updates'][-1]}\n")
        facts["requests"] = load.facts()
        nodes.serve.delete("shoal")
        until(lambda: not nodes.servers(), "the end of all servers")
    return facts


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--drain-seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with cluster(3, {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(arguments.drain_seconds)}) as nodes:
        facts = run(nodes, arguments.requests, arguments.clients)
        facts.update(nodes.close())
    facts["lines of HAProxy"] = nodes.log.lines[:20]
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    requests = facts["requests"]
    is_other = all(each["version"] == each["expected version"] for each in facts["updates"])
    return int(
        bool(
            not is_other or requests["wrong"] or requests["failed"] or facts["processes left"] or facts["segments left"]
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
