"""A storm over a cluster of three nodes: for five minutes something of it is killed every few seconds, under load.

    unshare --net python -m tests.ray.storm [--seconds 300] [--clients 6] [--seed 1]

Killed are servers, replicas, HAProxys and nodes (not the head, whose loss is Ray's own affair), and HAProxys are
reloaded. Prints what was seen as JSON. Exits with 1 if an answer was wrong, a failure came late, or anything is left.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from tests.ray.clients import Load
from tests.ray.nodes import PORT, Nodes, cluster, command, kill, until
from tests.ray.on_cluster import SAMPLES

NUM_REPLICAS = 3
#: Between two events: enough that some meet in one start of a replica, and few enough that most requests are answered.
PAUSE_S = 6.0
#: A request whose server was killed has failed in this time, on cores that starting servers use too.
AT_ONCE_S = 10.0


class Storm:
    """What happens, by chance."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self._nodes = nodes
        self._random = random.Random(seed)
        self.events = Counter[str]()
        self._is_node_lost = False

    def strike(self) -> str:
        """Do one thing; returns what it was."""
        if self._is_node_lost:
            self._nodes.add_node()
            self._is_node_lost = False
            return self._counted("node added")
        kind = self._random.choices(["server", "replica", "haproxy", "reload", "node"], [4, 3, 1, 3, 1])[0]
        if kind == "node":
            self._is_node_lost = True
            return self._counted("node lost", self._nodes.lose_node())
        if kind == "reload":
            try:
                self._nodes.reload_haproxy(self._random.randrange(8))
            except Exception as error:  # noqa: BLE001 - the node may just be lost
                return self._counted("reload that did not come about", repr(error)[:80])
            return self._counted("haproxy reloaded")
        title = {"server": "shoal supervisor", "replica": "ray::ServeReplica", "haproxy": "haproxy"}[kind]
        found = [pid for pid in self._nodes.processes() if title in command(pid)[: 100 if kind == "haproxy" else 40]]
        if not found:
            return self._counted(f"no {kind} to kill")
        kill(self._random.choice(sorted(found)))
        return self._counted(f"{kind} killed")

    def _counted(self, event: str, detail: str = "") -> str:
        self.events[event] += 1
        return f"{event} {detail}"


def run(nodes: Nodes, seconds: float, num_clients: int, seed: int) -> dict[str, Any]:
    import shoal.ray

    flags = ["--model-control-mode=explicit", "--load-model=simple", "--load-model=repeat"]
    application = shoal.ray.deployment(str(SAMPLES), num_replicas=NUM_REPLICAS, num_cpus=0.5, flags=flags)
    nodes.serve.run(application, name="shoal")
    until(lambda: nodes.num_ready() == NUM_REPLICAS and all(map(nodes.is_up, nodes.addresses)), "all replicas")
    facts: dict[str, Any] = {"nodes with servers": nodes.nodes_of_servers()}
    storm = Storm(nodes, seed)
    with Load(lambda: nodes.addresses, PORT, num_clients) as load:
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + seconds:
            before = load.num_right
            sys.stderr.write(f"{time.monotonic() - begin_s:.0f} s: {storm.strike()}\n")
            time.sleep(PAUSE_S)  # the storm's pace
            sys.stderr.write(f"    {load.num_right - before} answers, {len(load.outcomes)} failed so far\n")
    facts["events"] = dict(storm.events)
    facts["requests"] = load.facts()
    if len(nodes.workers) < 2:
        nodes.add_node()
    begin_s = time.monotonic()
    # A node on which no replica has come to lie has no HAProxy either.
    until(lambda: nodes.num_ready() == NUM_REPLICAS and any(map(nodes.is_up, nodes.addresses)), "all replicas again")
    facts["whole again after seconds"] = round(time.monotonic() - begin_s, 1)
    with Load(lambda: nodes.addresses, PORT, num_clients) as load:
        until(lambda: load.num_right > 1000, "a thousand answers after the storm")
    facts["after the storm"] = load.facts()
    nodes.serve.delete("shoal")
    until(lambda: not nodes.servers(), "the end of all servers")
    return facts


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with cluster(3, {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "10"}) as nodes:
        facts = run(nodes, arguments.seconds, arguments.clients, arguments.seed)
        facts.update(nodes.close())
    facts["lines of HAProxy"] = nodes.log.lines[:10]
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    requests = facts["requests"]
    is_late = requests["longest failure, seconds"] > AT_ONCE_S
    return int(bool(requests["wrong"] or is_late or facts["servers left"] or facts["segments left"]))


if __name__ == "__main__":
    raise SystemExit(main())
