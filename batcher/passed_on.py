"""Headers of tensors that the batcher passes on without reading them: parsed, and written anew for steps of ensembles.

The header of a request lies in a client's block, that of a response in a worker's. Steps of ensembles get a header that
the batcher writes, which names the blocks of the tensors. Since requests repeat, parsed headers are kept by their
bytes, and written headers by the types of their tensors: a lookup takes a tenth of the time of parsing or writing.
Lives in the batcher.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import NamedTuple, cast

from shoal import sequences
from shoal.batcher.templates import Template, TensorType, outputs_template, response_header, step_template
from shoal.datatypes import BY_WIRE
from shoal.errors import InternalError
from shoal.memo import Memo
from shoal.model_config.ensemble import fits
from shoal.model_config.signature import Signature, client_dims
from shoal.request import (
    NO_OPTIONS,
    ON_GPU,
    PLACED,
    InferRequest,
    Parameters,
    Stay,
    split_header,
    unpack_lent_layout,
    unpack_options,
    unpack_placed_response,
)
from shoal.shm.layout import WORD
from shoal.star.validation import ParsedInput, validate

#: A function from a block's reference to its memory; None if the block is gone.
OpenBlock = Callable[[int], memoryview | None]
#: A tensor and where it lies: its type, its offset in a block (bytes), the block's reference, and the block's size.
Passed = tuple[TensorType, int, int, int]
#: Inputs by name, in the request's order.
_Inputs = Sequence[tuple[str, Passed]]

#: Headers of more bytes are parsed each time (ours).
MAX_KEPT_HEADER_BYTES = 4096
#: Parsed or written headers of each kind that are kept (ours).
MAX_KEPT = 256

#: Parameters of a response that belong to its sequence. If a step's response has any of them, the request's two flags,
#: start and end, no longer hold for the ensemble's responses.
_SEQUENCE = {"sequence_id", "sequence_start", "sequence_end"}


# --- requests to ensembles ---


class EnsembleRequest(NamedTuple):
    """A request to an ensemble, without its inputs."""

    request: InferRequest
    #: The options in the header of the request, and of each step's request.
    options: bytes
    #: Type of the correlation id, and whether there is one, for the checks of steps' requests.
    sequence: tuple[type, bool]
    #: Parameters that every response begins with, as in Triton: those of its sequence.
    parameters: Parameters


class EnsembleRequests:
    """Parser of clients' requests to one ensemble."""

    def __init__(self) -> None:
        # Changed by read: parsed requests by header, of headers without options only; inputs and requested outputs by
        # the part of a header in front of the options. An input in the same block as the header has reference 0.
        self._kept = Memo[tuple[bytes, int], tuple[EnsembleRequest, _Inputs]]("ensemble_request", MAX_KEPT)
        self._layouts = Memo[tuple[bytes, int], tuple[_Inputs, tuple[str, ...]]]("ensemble_request_layout", MAX_KEPT)

    def read(
        self, header: bytes, ref: int, nbytes: int, nbytes_of: Callable[[int], int]
    ) -> tuple[EnsembleRequest, dict[str, Passed]]:
        """Parse the header of a request in block `ref` of `nbytes` bytes: the request, and its inputs by name.

        `nbytes_of` returns another block's size in bytes, 0 if it is gone. Raises InternalError for a malformed header.
        """
        found = self._kept.entries.get((header, nbytes))
        if found is None:
            found = self._read(header, nbytes, nbytes_of)
        asked, inputs = found
        return asked, {name: (kind, offset, lender or ref, size) for name, (kind, offset, lender, size) in inputs}

    def _read(self, header: bytes, nbytes: int, nbytes_of: Callable[[int], int]) -> tuple[EnsembleRequest, _Inputs]:
        layout, packed = split_header(header)
        inputs, outputs = self._layouts.entries.get((layout, nbytes)) or self._read_layout(layout, nbytes, nbytes_of)
        id_, parameters, sequence, _ = unpack_options(packed)
        correlation_id, flags = sequence
        request = InferRequest(id_, (), outputs, parameters, sequence)
        kind = type(correlation_id), bool(correlation_id)
        found = EnsembleRequest(request, packed, kind, _sequence_parameters(correlation_id, flags)), inputs
        if packed == NO_OPTIONS and (layout, nbytes) in self._layouts.entries:
            self._kept.keep((header, nbytes), found)
        return found

    def _read_layout(
        self, layout: bytes, nbytes: int, nbytes_of: Callable[[int], int]
    ) -> tuple[_Inputs, tuple[str, ...]]:
        def nbytes_there(lender: int) -> int:
            return nbytes_of(lender) if lender else nbytes

        refs, outputs = unpack_lent_layout(layout, nbytes_there)
        # No front end and no caller sends such a request; a guest could.
        if any(each.ref == ON_GPU or each.datatype & PLACED for each in refs):
            raise InternalError("an ensemble's input lies on a GPU")
        inputs = [
            (name, ((wire, shape, size), offset, lender, nbytes_there(lender)))
            for name, wire, shape, offset, size, lender in refs
        ]
        if len(layout) <= MAX_KEPT_HEADER_BYTES and not any(lender for _, (_, _, lender, _) in inputs):
            self._layouts.keep((layout, nbytes), (inputs, outputs))
        return inputs, outputs


def _sequence_parameters(correlation_id: int | str, flags: int) -> Parameters:
    """A sequence and its flags as a response's parameters. A numeric id beyond int64 becomes negative, as in
    Triton."""
    if isinstance(correlation_id, int) and correlation_id >= 1 << 63:
        correlation_id -= 1 << 64
    return {
        "sequence_id": correlation_id,
        "sequence_start": bool(flags & sequences.START),
        "sequence_end": bool(flags & sequences.END),
    }


# --- requests to steps ---

#: Rows and shape key of a step's request, and the template of its inputs and outputs.
Checked = tuple[int, int, Template]


class StepRequests:
    """Writer of requests to one step's model. A step's request is validated as a client's is."""

    def __init__(
        self, inputs: Sequence[tuple[str, str]], outputs: Sequence[str], stays: Callable[[], tuple[Stay, ...]]
    ) -> None:
        """`inputs` pairs the model's inputs with the ensemble's tensors; `outputs` are the model's outputs that the
        ensemble reads. `stays` returns which of these outputs may stay on which GPU, at each call the same."""
        self._inputs = inputs
        self._outputs = outputs
        self._stays = stays
        # Changed by write: rows, shape key and template, by model id, sequence and the types of the inputs.
        self._kept = Memo[Hashable, Checked]("step_request", MAX_KEPT)

    def write(
        self, model_id: int, signature: Signature, asked: EnsembleRequest, tensors: Mapping[str, Passed]
    ) -> tuple[int, int, bytes]:
        """Rows, shape key, header of a step's request; optional inputs may be missing. Raises InvalidArgumentError
        if the tensors do not fit the model."""
        request, options, sequence, _ = asked
        looked_at: list[object] = [model_id, sequence]
        numbers: list[int] = []
        for _, tensor in self._inputs:
            passed = tensors.get(tensor)
            if passed is None:
                looked_at.append(None)
            else:
                kind, offset, ref, _ = passed
                looked_at.append(kind)
                numbers += (offset, ref)
        key = tuple(looked_at)
        found = self._kept.entries.get(key)
        if found is None:
            kinds = [(name, tensors[tensor][0]) for name, tensor in self._inputs if tensor in tensors]
            found = self._check(signature, request, kinds)
            self._kept.keep(key, found)
        rows, shape_key, template = found
        return rows, shape_key, template.fill(numbers) + options

    def _check(self, signature: Signature, request: InferRequest, inputs: Sequence[tuple[str, TensorType]]) -> Checked:
        parsed, batches = [], signature.max_batch_size > 0
        for name, (wire, shape, nbytes) in inputs:
            spec = signature.inputs.get(name)
            shape = shape if spec is None else _batched(shape, spec.dims, batches=batches)
            # Only the size is checked here: the writer of a BYTES tensor has counted its strings, and the reader will.
            data = cast("memoryview", range(nbytes))
            parsed.append(ParsedInput(name, BY_WIRE[wire & ~PLACED], shape, data, prod(shape)))
        outputs = () if len(self._outputs) == len(signature.outputs) else tuple(self._outputs)
        valid = validate(signature, request.id, parsed, outputs, request.sequence[0])
        seen = [
            (name, (wire, each.shape, nbytes))
            for (name, (wire, _, nbytes)), each in zip(inputs, valid.inputs, strict=True)
        ]
        return valid.rows, valid.shape_key, step_template(seen, outputs, self._stays())


def _batched(shape: tuple[int, ...], dims: tuple[int, ...], *, batches: bool) -> tuple[int, ...]:
    """A tensor's shape for a model with these dims: as in Triton, a batch dimension of 1 is added or removed to fit."""
    if batches and fits(dims, shape):
        return (1, *shape)
    if not batches and shape[:1] == (1,) and not fits(dims, shape) and fits(dims, shape[1:]):
        return shape[1:]
    return shape


# --- responses of steps ---


class ResponseBlocks:
    """The blocks of a response, addressed as if they lay one behind the other."""

    def __init__(self, refs: Sequence[int], open_block: OpenBlock) -> None:
        """Open the blocks by `open_block`. Raises InternalError if one is gone."""
        self.refs = refs
        self._starts, self.nbytes = [], 0
        for ref in refs:
            block = open_block(ref)
            if block is None:
                raise InternalError("an output is gone: its block of shared memory was freed before it was read")
            self._starts.append(self.nbytes)
            self.nbytes += len(block)
        self._starts.append(self.nbytes)

    def find(self, offset: int) -> tuple[int, int, int]:
        """For an offset into all blocks (bytes): the offset within its block, that block's reference, and the
        block's size."""
        number = bisect_right(self._starts, offset, hi=len(self.refs)) - 1
        start, end = self._starts[number : number + 2]
        return offset - start, self.refs[number], end - start


def read_pieces(block: memoryview, num_pieces: int) -> list[int]:
    """The references to `num_pieces` blocks that stand at the start of a block of the batcher's own."""
    return block[: num_pieces * WORD].cast("Q").tolist()


#: A step's response, parsed: the tensors in it, each by its name in the ensemble, type and offset; the ensemble's names
#: of all outputs of the model, so that no step waits for an output that is absent; the parameters.
Answered = tuple[Sequence[tuple[str, TensorType, int]], tuple[str, ...], Parameters]


class StepResponses:
    """Parser of the responses of one step's model."""

    def __init__(self, tensors: Sequence[tuple[str, str]]) -> None:
        """`tensors` pairs the model's outputs with the ensemble's tensors."""
        self._tensors = tensors
        # Changed by read: parsed responses, by model id, header and number of bytes.
        self._kept = Memo[tuple[int, bytes, int], Answered]("step_response", MAX_KEPT)

    def read(self, model_id: int, signature: Signature, header: bytes, nbytes: int) -> Answered:
        """Parse a response's header; the response's tensors have `nbytes` bytes in all, and their shapes are as clients
        see them. Raises InternalError for a malformed header."""
        found = self._kept.entries.get((model_id, header, nbytes))
        if found is None:
            response = unpack_placed_response(header, nbytes)
            outputs = {each.name: each for each in response.outputs}
            written, names = [], tuple([tensor for _, tensor in self._tensors])
            for name, tensor in self._tensors:
                if name in outputs:
                    _, wire, shape, offset, size = outputs[name]
                    written.append((tensor, (wire, client_dims(signature, name, shape), size), offset))
            parameters = response.parameters
            if parameters.keys() & _SEQUENCE:  # flags that the step leaves out are false, whatever the request's are
                parameters = {"sequence_start": False, "sequence_end": False, **parameters}
            found = written, names, parameters
            if len(header) <= MAX_KEPT_HEADER_BYTES:
                self._kept.keep((model_id, header, nbytes), found)
        return found


# --- responses of ensembles ---


class EnsembleResponses:
    """Writer of one ensemble's responses."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        # Changed by write: templates of outputs, by the outputs and the types of their tensors.
        self._kept = Memo[Hashable, Template]("ensemble_response", MAX_KEPT)

    def write(
        self, outputs: Sequence[str], tensors: Sequence[Passed], parameters: Parameters
    ) -> tuple[list[int], bytes]:
        """The references to the blocks of a response's tensors, and its header."""
        key = (outputs, *[kind for kind, _, _, _ in tensors])
        template = self._kept.entries.get(key)
        if template is None:
            batches, shown = self._signature.max_batch_size > 0, []
            for name, ((wire, shape, nbytes), _, _, _) in zip(outputs, tensors, strict=True):
                shape = _batched(shape, self._signature.outputs[name].model_dims, batches=batches)
                shown.append((name, (wire, shape, nbytes)))
            template = outputs_template(shown)
            self._kept.keep(key, template)
        starts: dict[int, int] = {}
        end, places = 0, []
        for _, offset, ref, nbytes in tensors:
            start = starts.get(ref)
            if start is None:
                starts[ref] = start = end
                end += nbytes
            places.append(start + offset)
        return list(starts), response_header(template.fill(places), parameters)
