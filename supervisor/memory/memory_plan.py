"""Sizes of all segments, from the server's options and a model's configuration. Pure; used by the supervisor.

Rings hold all that can be outstanding, so a push never waits. The size of a front end's slab is an option; a worker's
slab holds the outputs of four executions of the model's largest batch.
"""

import math
from typing import Any

from shoal.datatypes import BY_CONFIG_NAME
from shoal.model_config import sequences
from shoal.options import ServerOptions
from shoal.shm.layout import MAX_UNREAD_CHILD_TRACES, UNIT, Geometry, slot_table_nbytes
from shoal.shm.shares import MODELS_AT_ONCE, RECORDS_PER_REQUEST

MIB = 1 << 20
#: Executions whose outputs a worker's slab holds: one that runs, one that is being sent, two with slow readers (ours).
EXECUTIONS_PER_SLAB = 4
#: The largest slab for the requests of a worker whose model calls others; a payload of more than a quarter of the
#: slab's largest block has a segment of its own (ours).
MAX_CALLER_SLAB_MIB = 16
#: Bytes per row assumed for an output of unknown size (ours: a megabyte is a large embedding or a small image).
UNKNOWN_OUTPUT_BYTES = 1 * MIB
#: Bytes assumed for a BYTES element (ours).
BYTES_ELEMENT_BYTES = 256
#: A client's ring of more than MAX_WHOLE_RING records is one of SMALL_RING at first: 128 KiB of memory instead of up to
#: 3.5 MiB (ours: enough for 146 requests in flight, shm/port.py).
MAX_WHOLE_RING, SMALL_RING = 8192, 1024
#: A ring to a client of more than MAX_WHOLE_LINK records is one of SMALL_LINK at first: 32 KiB of memory instead of 584
#: (ours: enough for 256 replies that the client has not read).
MAX_WHOLE_LINK, SMALL_LINK = 1024, 256
#: Room for the headers of the responses of a batch, per request.
HEADER_BYTES = 512
#: Records for which a ring has room beyond those that the functions below count.
SPARE_RECORDS = 64
#: Segments for single payloads at one time (ours): each takes two descriptors in the supervisor, and room for a FREE
#: in a worker's ring.
MAX_OVERSIZE_SEGMENTS = 256


def _client_geometry(options: ServerOptions, slab_nbytes: int) -> Geometry:
    num_records = options.max_in_flight * RECORDS_PER_REQUEST
    return Geometry(num_records, slab_nbytes, SMALL_RING if num_records > MAX_WHOLE_RING else 0)


def client_geometry(options: ServerOptions) -> Geometry:
    """A front end's own segment: its ring to the batcher and the slab for its requests."""
    return _client_geometry(options, options.shm_client_slab_mib * MIB)


def caller_geometry(options: ServerOptions) -> Geometry:
    """The caller's segment of a worker whose model calls others: smaller, as most tensors go by reference."""
    nbytes = min(options.shm_client_slab_mib, MAX_CALLER_SLAB_MIB) * MIB
    return _client_geometry(options, nbytes)


def guest_geometry(options: ServerOptions) -> Geometry:
    """A guest's own segment: its ring to the batcher and the slab for its requests."""
    return _client_geometry(options, options.client_slab_mib * MIB)


def batcher_geometry(options: ServerOptions) -> Geometry:
    """The batcher's own segment: a block for the headers of each ensemble's request under way and of each response that
    a client holds, and the blocks of the response cache."""
    steps = min(options.shm_client_slab_mib, MAX_CALLER_SLAB_MIB) * MIB
    return Geometry(0, steps + (options.cache_bytes + UNIT - 1) // UNIT * UNIT)


def client_link_geometry(options: ServerOptions) -> Geometry:
    """The batcher's segment towards a client: one reply per request in flight, and room for CHILD_TRACEs."""
    num_records = MODELS_AT_ONCE * options.max_in_flight + MAX_UNREAD_CHILD_TRACES + SPARE_RECORDS
    return Geometry(num_records, 0, SMALL_LINK if num_records > MAX_WHOLE_LINK else 0)


def worker_geometry(config: dict[str, Any], options: ServerOptions) -> Geometry:
    """A worker's own segment: one DONE per request of a batch, a HAVE for every block, and the slab for its results."""
    slab_nbytes = worker_slab_nbytes(config, options)
    num_blocks = slab_nbytes // UNIT + MAX_OVERSIZE_SEGMENTS
    return Geometry(2 * max(1, config["max_batch_size"]) + num_blocks + SPARE_RECORDS, slab_nbytes)


def worker_link_geometry(config: dict[str, Any], options: ServerOptions) -> Geometry:
    """The batcher's segment towards a worker: a ring for a batch's items and for a FREE of every block, in the worker's
    slab or beyond, and the table of the slots that sequences have."""
    num_blocks = worker_slab_nbytes(config, options) // UNIT + MAX_OVERSIZE_SEGMENTS
    num_records = num_blocks + max(1, config["max_batch_size"]) + SPARE_RECORDS
    return Geometry(num_records, slot_table_nbytes(sequences.num_slots(config)))


def oversize_geometry(payload_nbytes: int) -> Geometry:
    """A segment for a single payload: one block of that size, in whole pages."""
    return Geometry(0, (max(1, payload_nbytes) + UNIT - 1) // UNIT * UNIT)


def worker_slab_nbytes(config: dict[str, Any], options: ServerOptions) -> int:
    """Bytes of a worker's slab: room for four executions, as a power of two between 1 MiB and --shm-worker-slab-mib,
    plus one unit (the smallest block).

    The worker keeps that unit, to be able to report that everything else is taken.
    """
    row_nbytes = HEADER_BYTES + sum(map(_output_nbytes, config["output"]))
    # A block's size is a power of two: an execution of 1.1 MiB takes 2 MiB.
    execution: int = 1 << (row_nbytes * max(1, config["max_batch_size"]) - 1).bit_length()
    return min(max(EXECUTIONS_PER_SLAB * execution, MIB), options.shm_worker_slab_mib * MIB) + UNIT


def _output_nbytes(output: dict[str, Any]) -> int:
    dims: list[int] = output["dims"]
    if -1 in dims:
        return UNKNOWN_OUTPUT_BYTES
    return math.prod(dims) * (BY_CONFIG_NAME[output["data_type"]].itemsize or BYTES_ELEMENT_BYTES)
