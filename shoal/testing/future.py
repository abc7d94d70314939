"""Objects that a test can inspect: executed batches, and the responses to a request that the test has submitted."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.request import Parameters
from shoal.star.client import HeldResponse
from shoal.star.outgoing import OutgoingRequest
from shoal.testing.tensors import as_arrays
from shoal.workers.tensors import Array


class Batch(NamedTuple):
    """One execution of a model instance."""

    model: str
    version: int
    instance: str  # "simple_0_0"
    request_ids: tuple[str, ...]  # of the batch's requests, in order
    rows: int
    time_ms: float  # on the server's clock, which begins at 0


class StuckError(Exception):
    """A request will never be answered."""


@dataclass(frozen=True, eq=False)
class Response:
    """A response to a request. Its arrays are copies: BYTES outputs have elements of bytes, BF16 ones are float32."""

    model_name: str
    model_version: int
    id: str
    outputs: Mapping[str, Array]
    parameters: Parameters

    def __getitem__(self, output: str) -> Array:
        return self.outputs[output]

    def __contains__(self, output: object) -> bool:
        return output in self.outputs

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)


class Future:
    """A submitted request. `responses` and `errors` grow while the server runs; `result` and `results` let it run."""

    def __init__(
        self, outgoing: OutgoingRequest, run_until: Callable[[Callable[[], bool]], None], *, raise_errors: bool
    ) -> None:
        self._outgoing = outgoing
        self._run_until = run_until
        self._raise_errors = raise_errors
        # Changed by the server.
        self.on_cancel: Callable[[], None] = lambda: None
        self.responses: list[Response] = []
        self.errors: list[ShoalError] = []
        self.done = False

    def deliver(self, answer: HeldResponse | ShoalError | None, is_final: bool) -> None:
        """Add a response or an error; None for an end without either."""
        try:
            if isinstance(answer, HeldResponse):
                entry, ask = self._outgoing.entry, self._outgoing.ask
                arrays, parameters = as_arrays(entry, answer), answer.response.parameters
                self.responses.append(Response(entry.name, entry.version, ask.id, arrays, parameters))
            elif answer is not None:
                self.errors.append(answer)
        except ShoalError as error:
            self.errors.append(error)
        self.done = is_final

    def cancel(self) -> None:
        """Cancel the request: a queued one fails, and the model of an executing one is notified."""
        if not self.done:
            self.on_cancel()

    def result(self) -> Response:
        """The only response: the server runs, and its clock advances, until the response has arrived.

        Raises the request's error, as a client would, and AssertionError if a decoupled model sent none or several.
        """
        [*responses] = self.results()
        assert len(responses) == 1, f"the model sent {len(responses)} responses to one request"
        return responses[0]

    def results(self) -> list[Response]:
        """All responses, once the last one has arrived. Raises the first error among them."""
        self._run_until(lambda: self.done)
        for error in self.errors:
            raise as_raised(error, raise_errors=self._raise_errors)
        return self.responses


def as_raised(error: ShoalError, *, raise_errors: bool) -> BaseException:
    """The model's own exception with `raise_errors`, if it is known; otherwise the client's error."""
    return error.__cause__ if raise_errors and error.__cause__ is not None else error
