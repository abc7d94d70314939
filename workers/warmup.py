"""Warms up an instance before it is ready: runs the samples of model_warmup and the batches of a recording, or else
zeros of the smallest shape.

A sample runs as a client's batch would, through the backend's `execute`; but it passes no scheduler, it is not counted,
and its answers are dropped. If a sample fails, so does the load, since the sample was configured. The zeros are run
only because frameworks do extra work at their first run (memory, kernels); they may not suit the model, so their
failure is only logged. Runs in a worker while the model loads.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal import log
from shoal.datatypes import BOOL, BY_NAME, BYTES
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.model_config import files
from shoal.model_config.messages import Config
from shoal.model_config.signature import Signature, TensorSpec, reshaped
from shoal.model_config.warmup import INPUT_DATA_FILE, NO_ID, RANDOM_DATA, RECORDING, samples
from shoal.model_config.warmup import recording as recording_of
from shoal.request import InferRequest, TensorRef, pack_request
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend, BackendModel
from shoal.workers.loop import as_shoal_error
from shoal.workers.plans import OutputLayouts
from shoal.workers.requests import Request, RequestReader
from shoal.workers.tensors import Array

if TYPE_CHECKING:
    from shoal.recorder.recorded import RecordedRequest

_log = logging.getLogger(__name__)

#: Name of the directory of samples' data in a model's directory (Triton's).
DIRECTORY = "warmup"
#: The largest file with strings for a sample, in bytes: its size does not follow from a shape. It is the default of
#: --http-max-input-size (ours).
MAX_STRINGS_BYTES = 64 << 20
#: The most requests that are read from a recording, and the most batches of a recording that are run (ours).
MAX_RECORDED, MAX_RECORDED_BATCHES = 10_000, 32


def warm_up(backend: Backend, model: BackendModel, signature: Signature) -> None:
    """Run all samples of a loaded model; they have passed the checks of `shoal.model_config.warmup`.

    Raises InvalidArgumentError with Triton's sentences, InternalError for a file that cannot be read.
    """
    plans = OutputLayouts(signature)
    for sample in samples(model.config):
        name, batch_size = sample["name"], sample["batch_size"]
        # Checked before requests are made, so that the worker does not make as many requests as a file may say.
        if batch_size > max(1, signature.max_batch_size):
            raise _failed(
                name,
                [f"batch size {batch_size} for '{model.instance_name}', max allowed is {signature.max_batch_size}"],
            )
        requests = _requests(sample, model, signature)
        for iteration in range(1, max(1, sample["count"]) + 1):
            _log.log(
                log.verbose(1), "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                model.name, model.instance_name, name, iteration,
            )  # fmt: skip
            _run(backend, requests, Answers(len(requests), plans), model, name)
    if (recording := recording_of(model.config)) is not None:
        for requests in _recorded_batches(recording, model, signature):
            _run(backend, requests, Answers(len(requests), plans), model, recording)


def _run(backend: Backend, requests: Sequence[Request], answers: Answers, model: BackendModel, sample: str) -> None:
    """Run one batch of a sample or a recording. Raises InvalidArgumentError with the errors of its requests if any
    request fails."""
    try:
        backend.execute(requests, answers)
        answers.wait_for_senders()
    except Exception as error:  # noqa: BLE001 - whatever a model raises is the reason why it cannot be loaded
        answers.fail_all(as_shoal_error(error, model.name, model.instance_name, requests))
    if answers.errors:
        raise _failed(sample, list(dict.fromkeys(map(str, answers.errors))))


def _failed(sample: str, sentences: Sequence[str]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"failed to run warmup sample '{sample}': " + "".join(f"{each}; " for each in sentences)
    )


# -- requests ---------------------------------------------------------------------------------------------------------


def _requests(sample: Config, model: BackendModel, signature: Signature) -> list[Request]:
    """The requests of one batch: `batch_size` requests of one row each, all with equal data."""
    tensors = []
    leading = (1,) if signature.max_batch_size > 0 else ()
    for name, given in sample["inputs"].items():
        spec = signature.inputs[name]
        shape = tuple(given["dims"]) if spec.reshape is None else reshaped(given["dims"], spec.dims, spec.reshape)
        tensors.append((name, spec.datatype.wire, leading + shape, _data(given, spec, model)))
    block, header = _packed(InferRequest("", (), (), {}), tensors)
    reader = RequestReader(signature)
    return [reader.open(position, block, header) for position in range(sample["batch_size"])]


def _packed(
    request: InferRequest, tensors: Iterable[tuple[str, int, tuple[int, ...], bytes]]
) -> tuple[memoryview, bytes]:
    """A block with these tensors (name, datatype's number in records, shape, bytes), and the header of a request that
    has them."""
    body, refs = bytearray(), list[TensorRef]()
    for name, wire, shape, data in tensors:
        body += bytes(-len(body) % 64)
        refs.append(TensorRef(name, wire, shape, len(body), len(data)))
        body += data
    return memoryview(body).toreadonly(), pack_request(request._replace(inputs=tuple(refs)))


def _recorded_batches(filename: str, model: BackendModel, signature: Signature) -> Iterator[list[Request]]:
    """The first batches of a recording, of requests to the model that were answered; of each batch the first requests,
    as many as max_batch_size admits. Raises InvalidArgumentError for a recording that has no such batch, or one whose
    requests are not for this model, InternalError for a file that cannot be read."""
    from shoal.recorder.entry import Outcome
    from shoal.recorder.recorded import Recording, batches

    path = _inside(filename, f"the recording '{filename}' of {RECORDING} in model '{model.name}'", model)
    most_rows = max(1, signature.max_batch_size)
    answered = (
        each
        for each in islice(Recording(path), MAX_RECORDED)
        if each.model == model.name and each.outcome is Outcome.OK and each.sequence == (0, 0)
    )
    try:
        found = batches(answered, MAX_RECORDED_BATCHES)  # requests behind these batches are not read
    except OSError as error:
        raise InternalError(f"failed to open the recording {path}: {error.strerror}") from error
    if not found:
        raise InvalidArgumentError(f"the recording {path} has no answered request to model '{model.name}'")
    reader = RequestReader(signature)
    for batch in found:
        rows = accumulate([each.rows for each in batch])
        fitting = [each for each, until in zip(batch, rows, strict=True) if until <= most_rows]
        try:
            if fitting:
                yield [_opened(reader, position, each) for position, each in enumerate(fitting)]
        except ShoalError as error:
            raise _failed(filename, [f"request {fitting[0].number} or one of its batch: {error}"]) from error


def _opened(reader: RequestReader, position: int, recorded: "RecordedRequest") -> Request:
    """A recorded request as its instance got it. Raises InternalError if it is not for this model."""
    request = InferRequest(recorded.id, (), recorded.requested_outputs, recorded.parameters)
    tensors = [(each.name, BY_NAME[each.datatype].wire, each.shape, each.data) for each in recorded.inputs]
    return reader.open(position, *_packed(request, tensors))


def check_files(model: BackendModel, signature: Signature) -> None:
    """Read the files of all samples, as a warm-up does. For a file that is missing or too short, and for a recording
    that has no batch for the model, raises the same errors as `warm_up`."""
    if (recording := recording_of(model.config)) is not None:
        next(_recorded_batches(recording, model, signature))
    for sample in model.config["model_warmup"]:
        for name, given in sample["inputs"].items():
            if INPUT_DATA_FILE in given:
                _data(given, signature.inputs[name], model)


def _data(given: Config, spec: TensorSpec, model: BackendModel) -> bytes:
    # For strings, zeros are empty strings: each is the four bytes of its length, 0.
    nbytes = math.prod(given["dims"]) * (spec.datatype.itemsize or 4)
    if INPUT_DATA_FILE in given:
        return _read(given[INPUT_DATA_FILE], spec, nbytes, model)
    if RANDOM_DATA not in given or spec.datatype is BYTES:
        return bytes(nbytes)
    # Random values are the same at every load, so that a sample that fails will fail again.
    data = np.random.default_rng(0).bytes(nbytes)
    return bytes(np.frombuffer(data, np.uint8) & 1) if spec.datatype is BOOL else data


def _read(filename: str, spec: TensorSpec, nbytes: int, model: BackendModel) -> bytes:
    """The data of one input; bytes of the file beyond `nbytes` are ignored, as in Triton."""
    what = f"warmup data file '{filename}' for input '{spec.name}' in model '{model.name}'"
    path = _inside(filename, what, model)
    is_strings = spec.datatype is BYTES
    try:
        data = files.read(path, MAX_STRINGS_BYTES + 1 if is_strings else nbytes)
    except OSError as error:
        raise InternalError(f"failed to open text file for read {path}: {error.strerror}") from error
    if is_strings and len(data) > MAX_STRINGS_BYTES:
        raise InvalidArgumentError(f"{what} is larger than {MAX_STRINGS_BYTES} bytes; a sample needs fewer strings")
    if not is_strings and len(data) < nbytes:  # the sentence lacks a blank, as Triton's does
        raise InvalidArgumentError(
            f"{NO_ID}warmup setting expects {nbytes} bytes, but the data provided from {filename}only has {len(data)} "
            "bytes"
        )
    return data


def _inside(filename: str, what: str, model: BackendModel) -> Path:
    """The path of a file in the model's directory of samples. Raises InvalidArgumentError for a path outside that
    directory."""
    directory = Path(model.version_dir).parent / DIRECTORY
    return files.inside(directory, filename, f"{what} is outside directory '{DIRECTORY}' of the model")


# -- zeros ------------------------------------------------------------------------------------------------------------


def run_zeros(run: Callable[[dict[str, Array]], object], inputs: dict[str, Array] | None, instance_name: str) -> None:
    """Run a model once on `smallest_inputs`, for backends that are slower at their first run, and models without
    samples. A failure is only logged; without `inputs` nothing is run."""
    if inputs is None:
        return
    try:
        run(inputs)
    except ShoalError as error:
        _log.info("worker %s: the first run, on zeros, failed: %s", instance_name, error)


def smallest_inputs(signature: Signature) -> dict[str, Array] | None:
    """One row of zeros per required input, with each variable dimension 1; None if such an input has strings, whose
    contents would have to be guessed."""
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    if any(spec.datatype is BYTES for spec in required):
        return None
    leading = (1,) if signature.max_batch_size > 0 else ()
    return {
        spec.name: np.zeros(leading + tuple([max(dim, 1) for dim in spec.model_dims]), spec.datatype.dtype)
        for spec in required
    }
