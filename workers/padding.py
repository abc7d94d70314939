"""Batches whose requests are padded to one length, and whose outputs are cut back to each request's own length.

    padded input   the requests' rows one after another, each filled up with zeros (empty strings) to the batch's length
    mask           an input that no client sends: rows x length, 1 for elements of requests and 0 for padding
    cut output     an output of the batch's length, of which each request gets its own length

The length is that of the longest request, or of its bucket (shoal/model_config/ragged_batching.py). Pure, except for
the metrics. Runs in a worker.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.datatypes import BY_CONFIG_NAME, Datatype
from shoal.errors import InternalError
from shoal.model_config.messages import Config
from shoal.model_config.ragged_batching import Strategy, following_outputs, length_axes, lengths, mask
from shoal.model_config.signature import Signature
from shoal.star.validation import log_prefix
from shoal.workers.answers import Answers, lacks_rows
from shoal.workers.ragged import RaggedBatches
from shoal.workers.requests import Request
from shoal.workers.tensors import Array


class PaddingMetrics:
    """The numbers of elements of padded inputs that the model was given, as metrics of the model, which the supervisor
    adds up over the model's instances."""

    def __init__(self, model: str, version: int) -> None:
        # Imported here, since the import makes this a process that reports metrics of its model.
        from triton_python_backend_utils.metrics import MetricFamily

        labels = {"model": model, "version": str(version)}
        text = "Elements of padded inputs that were executed, padding included"
        self._elements = MetricFamily("shoal_batch_elements_total", text, MetricFamily.COUNTER)
        text = "Elements of padded inputs that were padding"
        self._padding = MetricFamily("shoal_batch_padding_elements_total", text, MetricFamily.COUNTER)
        self._count_elements, self._count_padding = (
            family.Metric(labels).increment for family in (self._elements, self._padding)
        )

    def added(self, elements: int, padding: int) -> None:
        """Count a batch: `elements` in all, of which `padding` are padding."""
        self._count_elements(elements)
        self._count_padding(padding)


class PaddedBatches(RaggedBatches):
    """Assembles the batches of a model whose requests the server pads, and divides the outputs among them."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        known, name = lengths(config), config["name"]
        assert known is not None, f"model '{name}' is padded"
        self._lengths = known
        #: Padded input → the axis, in the batch, along which it is padded.
        self._axes = {each: 1 + axis for each, axis in length_axes(config).items()}
        self.inputs = frozenset(self._axes)
        self._measured = next(iter(self._axes.items()))  # any one: all of a request's have one length
        made = mask(config)
        self._mask = "" if made is None else made[0]
        self.made: Mapping[str, Datatype] = {} if made is None else {made[0]: BY_CONFIG_NAME[made[1]]}
        self._following = {each: 1 + axis for each, axis in following_outputs(config).items()}
        self._specs = Signature.from_config(config).inputs
        #: The metrics, set once the model serves; None before, when nothing is counted.
        self.counts: PaddingMetrics | None = None

    def __bool__(self) -> bool:
        """Always True: all batches of the model are padded."""
        return True

    def joinable(self, requests: Sequence[Request], answers: Answers) -> Sequence[Request]:
        """The requests each of whose padded inputs have one length, as front ends have checked; any other request fails
        in `answers`."""
        joined = []
        for request in requests:
            found = {name: request.parsed.inputs[name][1][axis] for name, axis in self._axes.items()}
            if len(set(found.values())) == 1:
                joined.append(request)
            else:
                sentence = f"inputs are padded together and must have one length, got {found}"
                answers.fail(request.position, InternalError(log_prefix(request.id) + sentence))
        return joined

    def gather(self, requests: Sequence[Request]) -> dict[str, Array]:
        """All inputs of the model, for these requests as one batch; the mask is among them."""
        longest = max([self._length(request) for request in requests])
        length = self._lengths.padded(longest) if longest else 0
        rows = sum([request.parsed.rows for request in requests])
        gathered = {
            name: self._padded(name, requests, rows, length)
            if name in self._axes
            else np.concatenate([request.inputs[name] for request in requests])
            for name in requests[0].parsed.inputs
        }
        if self._mask:
            gathered[self._mask] = self._made_mask(requests, rows, length)
        if self.counts is not None:
            elements = sum([gathered[name].size for name in self._axes])
            real = sum([request.inputs[name].size for request in requests for name in self._axes])
            self.counts.added(elements, elements - real)
        return gathered

    def add(self, requests: Sequence[Request], outputs: Mapping[str, Array], answers: Answers) -> None:
        """Answer each request with its rows of the model's outputs; outputs that follow the inputs' length are cut to
        the request's own. A request for which an output lacks rows fails."""
        length = self._lengths.padded(longest) if (longest := max(map(self._length, requests))) else 0
        end = 0
        for request in requests:
            start, end = end, end + request.parsed.rows
            own = self._length(request)
            parts: dict[str, Array] = {}
            for name, array in outputs.items():
                if (len(array) if array.ndim else 0) < end:
                    answers.fail(request.position, lacks_rows(request, name, end, len(array) if array.ndim else 0))
                    break
                part = array[start:end]
                axis = self._following.get(name, 0)
                if axis and array.ndim > axis and array.shape[axis] == length:
                    part = part[(slice(None),) * axis + (slice(own),)]
                parts[name] = part
            else:
                answers.add(request, parts)

    def _length(self, request: Request) -> int:
        name, axis = self._measured
        return request.parsed.inputs[name][1][axis]

    def _padded(self, name: str, requests: Sequence[Request], rows: int, length: int) -> Array:
        axis, dtype = self._axes[name], self._specs[name].datatype.dtype
        first: tuple[int, ...] = requests[0].parsed.inputs[name][1]
        padded: Array = np.full(
            (rows, *first[1:axis], length, *first[axis + 1 :]), b"" if dtype.kind == "O" else 0, dtype
        )
        end = 0
        for request in requests:
            start, end = end, end + request.parsed.rows
            array = request.inputs[name]
            padded[(slice(start, end), *[slice(None)] * (axis - 1), slice(array.shape[axis]))] = array
        return padded

    def _made_mask(self, requests: Sequence[Request], rows: int, length: int) -> Array:
        made: Array = np.zeros((rows, length), self.made[self._mask].dtype)
        end = 0
        for request in requests:
            start, end = end, end + request.parsed.rows
            made[start:end, : self._length(request)] = 1
        return made


def ragged_batches(config: Config) -> RaggedBatches | None:
    """The assembler of batches of a model whose requests differ in length; None for all other models, whose batches are
    the concatenated rows of their requests."""
    known = lengths(config)
    if known is not None and known.strategy is not Strategy.PACK:
        return PaddedBatches(config)
    return RaggedBatches(config) or None
