"""`shoal.testing.Server`: the server in a test, with its models, its clock, and requests."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.frontend.prepared import checked_id
from shoal.frontend.v2.infer import parse_settings
from shoal.model_config.messages import Config
from shoal.options import ServerOptions
from shoal.star.models import ModelEntry
from shoal.star.outgoing import RawRequest, check
from shoal.testing.future import Batch, Future, Response, as_raised
from shoal.testing.models import SimulatedModels
from shoal.testing.repository import Repository
from shoal.testing.star import SimulatedStar
from shoal.testing.tensors import parse_inputs


class Server:
    """Models of a repository, served in this process. Use a server in a `with` statement, or `close` it.

    Time stands still while the test does something else: a submitted request waits until the test lets time pass
    (`advance`), wants a response (`infer`, `stream`, `Future.result`) or lets everything run (`run_until_idle`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        models: Sequence[str] | None = None,
        *,
        raise_errors: bool = False,
        execution_ms: Mapping[str, float] | None = None,
        backend_config: Mapping[str, Mapping[str, str]] | None = None,
        cache_bytes: int = 0,
        patience_s: float = 10.0,
    ) -> None:
        """Load `models`, or all, of the model repository `path`, or the single model with the directory `path`.

        `raise_errors`: exceptions of models are raised, not the errors that clients would get.
        `execution_ms`: by model, the time of one execution on the server's clock; 0 by default.
        `backend_config`: by backend, the settings of --backend-config.
        `cache_bytes`: the size in --cache-config local,size=; 0 without a cache.
        `patience_s`: how long the test waits for threads of a model, in real seconds, before StuckError.
        Raises the ShoalError of a model that cannot be loaded.
        """
        options = ServerOptions(backend_config={each: dict(said) for each, said in (backend_config or {}).items()})
        repository = Repository(Path(path))
        self._raise_errors = raise_errors
        self._star = SimulatedStar(patience_s, cache_bytes)
        self._models = SimulatedModels(repository, options, execution_ms or {}, self._star)
        try:
            for name in repository.names() if models is None else models:
                if name not in self.models:  # an ensemble has loaded it
                    self.load(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unload all models; open requests fail."""
        self._models.close()
        self._star.close()

    # -- models ---------------------------------------------------------------------------------------------------

    def load(self, model: str, config: str | None = None) -> None:
        """Load a model, or load it again; `config`, a ModelConfig in JSON, replaces the model's file.

        Raises ShoalError for an invalid model; the versions loaded before then stay.
        """
        try:
            self._models.load(model, config)
        except ShoalError as error:
            raise as_raised(error, raise_errors=self._raise_errors) from error.__cause__

    def unload(self, model: str) -> None:
        """Unload a model if it is loaded; requests that wait for it fail."""
        self._models.unload(model)

    @property
    def models(self) -> list[str]:
        """The names of all loaded models."""
        return sorted(self._models.loaded)

    def config(self, model: str, version: int | None = None) -> Config:
        """A model's completed configuration, as GET /v2/models/MODEL/config has it."""
        return self._lookup(model, version).config

    # -- requests -------------------------------------------------------------------------------------------------

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int | None = None,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout_us: int = 0,
        deadline_ms: float = 0,
    ) -> Future:
        """Put a request into the model's queue. Raises the ShoalError of a request that is refused at once.

        Inputs are arrays, of the datatypes and shapes that a client would send, or lists, numbers and texts, which are
        converted. `outputs` names the wanted outputs; empty: all. `sequence_id` to `timeout_us` may also be in
        `parameters`, under Triton's names. `deadline_ms` is how long the client waits for its response, as by a gRPC
        deadline; 0: no limit.
        """
        entry = self._lookup(model, version)
        own = {"sequence_id": sequence_id, "sequence_start": sequence_start, "sequence_end": sequence_end}
        said = parse_settings({**own, "priority": priority, "timeout": timeout_us, **(parameters or {})})
        ask = RawRequest(
            checked_id(request_id),
            parse_inputs(entry.signature, inputs),
            tuple(outputs),
            said.parameters,
            said.priority,
            said.timeout_us,
            said.correlation_id,
            said.flags,
            self._star.now_ns + round(deadline_ms * 1e6) if deadline_ms else 0,
        )
        outgoing = check(entry, ask)
        future = Future(outgoing, self._star.run_until, raise_errors=self._raise_errors)
        number = self._star.client.submit(outgoing, future.deliver, is_call=False)
        if future.errors:
            raise as_raised(future.errors[0], raise_errors=self._raise_errors)
        future.on_cancel = lambda: self._star.client.cancel(number)
        return future

    def _lookup(self, model: str, version: int | None) -> ModelEntry:
        return self._star.client.models.lookup(model, None if version is None else str(version))

    def infer(self, model: str, inputs: Mapping[str, Any], **options: Any) -> Response:
        """Submit a request as by `submit`, and let time pass until its response is there. Raises its error."""
        return self.submit(model, inputs, **options).result()

    def stream(self, model: str, inputs: Mapping[str, Any], **options: Any) -> list[Response]:
        """Submit a request to a decoupled model as by `submit`; all responses. Raises the first error among them."""
        return self.submit(model, inputs, **options).results()

    # -- time -----------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> list[Batch]:
        """Every execution since the server started, or since the test cleared this list."""
        return self._star.batches

    @property
    def now_ms(self) -> float:
        """The time on the clock, which begins at 0, in ms."""
        return self._star.now_ms

    def advance(self, *, seconds: float = 0, milliseconds: float = 0, microseconds: float = 0) -> None:
        """Let time pass: all work that becomes due runs, in order, each at its time."""
        self._star.advance(round(seconds * 1e9 + milliseconds * 1e6 + microseconds * 1e3))

    def run_until_idle(self) -> None:
        """Let time pass until every request has been answered. Raises StuckError if one never can be."""
        self._star.run_until(lambda: not self._star.client.open)
