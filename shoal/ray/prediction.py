"""Batch inference: a Ray Dataset through servers, one per actor, each asked through shared memory."""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.client.aio import AsyncClient
from shoal.errors import InvalidArgumentError
from shoal.ray.replica import assigned
from shoal.ray.replica_server import ReplicaServer, ServerPlan
from shoal.ray.rows import Columns, joined, pieces

ray_data: Any = importlib.import_module("ray.data")

#: Requests of one actor that are open at once: enough that batches form, too few to fill a queue.
_MAX_OPEN = 64


def predict(
    dataset: Any,
    *,
    model: str,
    model_repository: str | Sequence[str],
    columns: Mapping[str, str] | None = None,
    outputs: Sequence[str] | None = None,
    keep: bool = True,
    batch_size: int = 256,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    version: str = "",
    flags: Sequence[str] = (),
) -> Any:
    """The dataset with each output of the model as a further column; with `keep` False, only these columns.

    An input of the model is the column of its name, or the one that `columns` names for it: {"image": "pixels"}. Rows
    are rows of the batch dimension. Lazy, as Ray's datasets are: reading the result runs it, with Ray Data's progress.
    `concurrency` actors, or (fewest, most) of them, each run a server with `num_cpus` cores and `num_gpus` GPUs, which
    gets `batch_size` rows at a time, in as many requests as the model's max_batch_size needs. Raises
    InvalidArgumentError; reading the result raises Ray's errors around those of `shoal.Client.infer`.
    """
    if batch_size < 1:
        raise InvalidArgumentError(f"batch_size must be at least 1, got {batch_size}")
    repositories = (model_repository,) if isinstance(model_repository, str) else tuple(model_repository)
    plan = ServerPlan(repositories, ("--model-control-mode=explicit", f"--load-model={model}", *flags))
    fewest, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    return dataset.map_batches(
        Predictor,
        fn_constructor_args=(plan, model, version, dict(columns or {}), outputs, keep),
        batch_size=batch_size,
        batch_format="numpy",
        compute=ray_data.ActorPoolStrategy(min_size=fewest, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )


class Predictor:
    """The callable of one of Ray Data's actors: it runs a server, and asks the server about batches of rows."""

    def __init__(
        self,
        plan: ServerPlan,
        model: str,
        version: str,
        columns: Mapping[str, str],
        outputs: Sequence[str] | None,
        keep: bool,
    ) -> None:
        """Start the server, which ends with the actor's process. Raises UnavailableError if it fails."""
        self._claimed, plan = assigned(plan)
        self._server = ReplicaServer(plan)
        self._server.start()
        self._model, self._version, self._outputs, self._keep = model, version, outputs, keep
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(self._server.client_socket)
        self._columns = columns
        metadata = self._loop.run_until_complete(self._client.model_metadata(model, version=version))
        config = self._loop.run_until_complete(self._client.model_config(model, version=version))
        self._inputs = {each["name"]: columns.get(each["name"], each["name"]) for each in metadata["inputs"]}
        self._max_rows = int(config.get("max_batch_size", 0))

    def __call__(self, batch: Columns) -> Columns:
        """The outputs for a batch of rows. Raises InvalidArgumentError for a column that is missing."""
        for name, column in self._inputs.items():
            if column not in batch:
                raise InvalidArgumentError(
                    f"input '{name}' of model '{self._model}' is column '{column}', which the dataset lacks; it has "
                    f"{', '.join(batch)}. Name another one: columns={{'{name}': ...}}"
                )
        arrays = {name: batch[column] for name, column in self._inputs.items()}
        answers = self._loop.run_until_complete(self._ask(list(pieces(arrays, self._max_rows))))
        outputs = joined(answers, has_rows=self._max_rows > 0)
        return {**batch, **outputs} if self._keep else outputs

    async def _ask(self, requests: Sequence[Columns]) -> list[Columns]:
        places = asyncio.Semaphore(_MAX_OPEN)

        async def ask(inputs: Columns) -> Columns:
            async with places:
                return await self._client.infer(self._model, inputs, self._outputs, version=self._version)

        return await asyncio.gather(*map(ask, requests))
