"""A replica of Ray Serve that runs a whole server, with the GPUs and the cores that Ray has assigned to it.

The server's processes are children of the replica's process, and end with it. HTTP reaches the server's own listener
where Serve has HAProxy, else through `Relay`; calls by a handle pass arrays through shared memory.
"""

import asyncio
import importlib
import logging
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.client.aio import AsyncClient
from shoal.ray.cores import claim_cores
from shoal.ray.listener import is_direct, listen_in_place_of_serve
from shoal.ray.load_figures import Sample, figures_between, read_sample
from shoal.ray.relay import Relay
from shoal.ray.replica_server import ReplicaServer, ServerPlan, closed_to_all
from shoal.ray.scaling import QUEUE_AGE, UTILISATION

ray: Any = importlib.import_module("ray")
_log = logging.getLogger("ray.serve")

_relay = Relay()


def relay_application() -> Relay:
    """The application of this process, for `serve.ingress`."""
    return _relay


class ShoalReplica:
    """The class of the deployment; Serve calls its methods. A process has one object of it."""

    def __init__(self, plan: ServerPlan) -> None:
        self._claimed, plan = assigned(plan)
        self._server = ReplicaServer(plan)
        self._client: AsyncClient | None = None
        self._sample: Sample | None = None
        if is_direct():
            listen_in_place_of_serve(self._server, self._has_started)

    def _has_started(self) -> None:
        _relay.port = self._server.http_port

    async def check_health(self) -> None:
        """Start the server, unless Serve has started it by its listener (listener.py), and ask whether it is ready.

        Raises UnavailableError, which Serve's status then shows: with the reasons for which models are not ready, or
        with the end of the log of a server that has ended. The first call is a part of the replica's start.
        """
        if not self._server.is_started:
            await asyncio.to_thread(self._server.start)
            self._has_started()
        await asyncio.to_thread(self._server.check_health)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures that QueueAgePolicy decides by."""
        text = await asyncio.to_thread(self._server.metrics)
        before, now = self._sample, read_sample(text, time.monotonic_ns())
        self._sample = now
        figures = figures_between(before or now, now)
        return {QUEUE_AGE: figures.queue_age_s, UTILISATION: figures.utilisation}

    async def infer(self, model: str, inputs: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
        """The outputs of a model by name, for calls by a handle: `handle.infer.remote("digits", {"image": array})`.

        Arrays pass through shared memory. `arguments` are those of `shoal.Client.infer`; raises what that raises.
        """
        return dict(await self._connected().infer(model, inputs, **arguments))

    async def stream(self, model: str, inputs: Mapping[str, Any], **arguments: Any) -> AsyncIterator[dict[str, Any]]:
        """The answers of a decoupled model, for calls by a handle with `stream=True`."""
        async for result in self._connected().stream(model, inputs, **arguments):
            yield dict(result)

    def _connected(self) -> AsyncClient:
        if self._client is None:
            self._client = AsyncClient(self._server.client_socket)
        return self._client

    async def __del__(self) -> None:
        """Stop the server; called by Serve when the replica's requests are answered."""
        if self._client is not None:
            await self._client.close()
        await asyncio.to_thread(self._server.stop)
        if self._claimed is not None:
            self._claimed.close()


def assigned(plan: ServerPlan) -> tuple[Any, ServerPlan]:
    """The claim of cores, if any, and the plan with the GPUs and cores that Ray has assigned to this process.

    A number of cores that is not whole, such as 0.5, is a share that Ray only counts: the server may then use every
    core.
    """
    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    # Ray's own setting may be absent where no GPU was asked for, and the server would take all.
    environment = {**plan.environment, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    number = float(context.get_assigned_resources().get("CPU", 0))
    claimed = None
    if number >= 1 and number == math.floor(number):
        folder = Path(tempfile.gettempdir(), f"shoal-cores-{os.getuid()}")
        claimed = claim_cores(int(number), folder, os.sched_getaffinity(0))
        if claimed is None:
            _log.warning("fewer than %d cores of this node are no other replica's: the server is not pinned", number)
    cores = () if claimed is None else claimed.cores
    return claimed, replace(plan, environment=environment, cores=cores, flags=closed_to_all(plan.flags))
