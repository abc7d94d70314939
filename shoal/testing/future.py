"""What a test holds of a request that it has submitted: the responses that have come, and the way to the next ones."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.frontend.prepared import PreparedRequest
from shoal.request import Parameters
from shoal.testing.tensors import Answer, as_arrays
from shoal.workers.tensors import Array


@dataclass(frozen=True, eq=False)
class Response:
    """One response. Its arrays are its own: of BYTES outputs they have elements of bytes, of BF16 ones float32."""

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
    """One request. `responses` and `errors` grow while the server runs; only `result` and `results` let it run."""

    def __init__(
        self, prepared: PreparedRequest, run_until: Callable[[Callable[[], bool]], None], *, raise_errors: bool
    ) -> None:
        self._prepared = prepared
        self._run_until = run_until
        self._raise_errors = raise_errors
        # Changed by the server.
        self.on_cancel: Callable[[], None] = _nothing
        self.responses: list[Response] = []
        self.errors: list[ShoalError] = []
        self.done = False

    def hear(self, answer: Answer | None, is_final: bool) -> None:
        """One more response, an error in place of one, or only the end."""
        if isinstance(answer, ShoalError):
            self.errors.append(answer)
        elif answer is not None:
            outputs, parameters = answer
            model, id_ = self._prepared.entry, self._prepared.id
            self.responses.append(Response(model.name, model.version, id_, as_arrays(outputs), parameters))
        self.done = is_final

    def cancel(self) -> None:
        """Nobody waits for it any more: it fails where it is still queued, else its model is told."""
        if not self.done:
            self.on_cancel()

    def result(self) -> Response:
        """The one response: the server runs, and its clock goes on, until it is there.

        Raises the error that stands in its place, as the client would be told, and AssertionError where a decoupled
        model sent none or several.
        """
        [*responses] = self.results()
        assert len(responses) == 1, f"the model sent {len(responses)} responses to one request"
        return responses[0]

    def results(self) -> list[Response]:
        """All responses, once the last one is there. Raises the first error among them."""
        self._run_until(lambda: self.done)
        for error in self.errors:
            raise as_raised(error, raise_errors=self._raise_errors)
        return self.responses


def as_raised(error: ShoalError, *, raise_errors: bool) -> BaseException:
    """What the model raised, where that is wanted and known; else what a client is told, with that as its cause."""
    return error.__cause__ if raise_errors and error.__cause__ is not None else error


def _nothing() -> None:
    """There is nothing to be cancelled yet."""
