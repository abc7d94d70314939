"""Triton's system shared memory under load: a pair of regions of the client's for input and output, and a request that
names them in place of tensors.

The regions are files in /dev/shm, filled before the load; the server reads and writes them, and the sockets carry a
small JSON.
"""

import json
import mmap
import os
import secrets
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path

from bench.errors import BenchmarkError
from bench.server import SHARED_MEMORY, Server
from bench.workloads import INPUT_REGION, OUTPUT_REGION, BenchModel, Request, expected, verify

_FLOAT_BYTES = 4


@contextmanager
def registered(server: Server, model: BenchModel) -> Iterator[Callable[[Mapping[str, str], bytes], None]]:
    """Regions of a running server, for as long as the block lasts; waits until the server registers them.

    Yields a check of answers: the check raises BenchmarkError unless the output lies in its region, and clears the
    region. Raises BenchmarkError for a server that registers none.
    """
    values = model.values.tobytes()
    with ExitStack() as stack:
        source = stack.enter_context(_region(len(values)))
        target = stack.enter_context(_region(prod(model.output_dims) * _FLOAT_BYTES))
        for name, (path, view) in ((INPUT_REGION, source), (OUTPUT_REGION, target)):
            server.wait_for_answer(_registration(name, path, len(view)), lambda _headers, _body: None)
        _, view = source
        view[:] = values
        _, output = target

        def check(_headers: Mapping[str, str], body: bytes) -> None:
            (tensor,) = json.loads(body)["outputs"]
            if "data" in tensor:
                raise BenchmarkError(f"the answer has its tensor with it: {body[:200].decode(errors='replace')}")
            verify(model, array("f", output[:]), expected(model))
            output[:] = bytes(len(output))

        yield check


def _registration(name: str, path: Path, num_bytes: int) -> Request:
    body = json.dumps({"key": f"/{path.name}", "offset": 0, "byte_size": num_bytes}).encode()
    return Request(f"/v2/systemsharedmemory/region/{name}/register", {"Content-Type": "application/json"}, body)


@contextmanager
def _region(num_bytes: int) -> Iterator[tuple[Path, mmap.mmap]]:
    """A new file in /dev/shm and its mapping, both of zeros; gone after the block."""
    path = SHARED_MEMORY / f"shoal_bench_{secrets.token_hex(8)}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, num_bytes)
        with mmap.mmap(fd, num_bytes) as view:
            yield path, view
    finally:
        os.close(fd)
        path.unlink()
