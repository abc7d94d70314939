"""Comparisons of Shoal with itself: settings, and by how much each may make an ordinary request dearer or slower.

Each comparison is one workload under two settings of Shoal that differ in one thing. A setting is a Peer: it is
started, asked and checked as any other peer.
"""

import functools
import random
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from bench.background_load import QuietConnections, RepeatedRequest, raw
from bench.peers import PEERS, Peer, launch_shoal
from bench.server import Server
from bench.workloads import DIGITS, IDENTITY_16, IDENTITY_IMAGE, WORKLOADS, BenchModel, Request, v2_request

NUM_MODELS, NUM_INSTANCES = 200, 8
NUM_GUESTS, NUM_LARGE_READERS = 1000, 50
LARGE_BODY_BYTES = 60_000_000
WORKLOAD = next(each for each in WORKLOADS if each.name == "binary-c10")
#: Models loaded beside the measured one, in the plain setting, too, since background clients ask them.
ANY_SIZE = BenchModel("identity_any", ("INPUT0",), (-1,), ("OUTPUT0",), (-1,), 0)
BESIDE = (IDENTITY_IMAGE, ANY_SIZE)


class Figure(Enum):
    """The figure that a comparison is about."""

    RATE = "requests/s"
    P99 = "p99"
    CPU = "CPU a request"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Shoal in two settings. `target` is the least rate, or the largest p99 or CPU time, as a multiple of the plain
    setting's."""

    name: str
    title: str
    plain: Peer
    other: Peer
    figure: Figure
    target: float


def _guests(
    model: BenchModel, part: Callable[[bytes], bytes] = bytes, size: int = NUM_GUESTS, **how: bool
) -> Callable[[int], QuietConnections]:
    """Connections that each send a part of a request to a model; `how` is passed on to QuietConnections."""
    return lambda port: QuietConnections(port, size, part(raw(v2_request(model, "binary"))), **how)


def _large_bodies(port: int) -> RepeatedRequest:
    return RepeatedRequest(port, *_large_json())


def _open_page(port: int) -> RepeatedRequest:
    """The requests that the page's app.js sends while the page is open."""
    return RepeatedRequest(port, Request("/ui/figures", {}, b""), method="GET", every_s=1.0)


@functools.cache
def _large_json() -> tuple[Request, bytes]:
    """A request of LARGE_BODY_BYTES of JSON, answered in binary, and the last bytes of the right answer."""
    numbers = random.Random(2)
    few = [round(numbers.uniform(0.1, 1), 8) for _ in range(1000)]
    text = ",".join(f"{number:.8f}" for number in few)
    times = LARGE_BODY_BYTES // (len(text) + 1)
    head = (
        f'{{"outputs":[{{"name":"{ANY_SIZE.output_names[0]}","parameters":{{"binary_data":true}}}}],"inputs":'
        f'[{{"name":"{ANY_SIZE.input_names[0]}","datatype":"FP32","shape":[{len(few) * times}],"data":['
    )
    body = (head + ",".join([text] * times) + "]}]}").encode()
    path = f"/v2/models/{ANY_SIZE.name}/infer"
    return Request(path, {"Content-Type": "application/json"}, body), array("f", few * times).tobytes()


def _setting(
    name: str,
    title: str,
    others: Sequence[BenchModel] = BESIDE,
    num_instances: int = 1,
    background: Callable[[int], AbstractContextManager[object]] = nullcontext,
    record: str = "",
) -> Peer:
    """A setting of Shoal; `record` is a setting of --record-config, with which it records into the server's folder."""

    def launch(folder: Path, model: BenchModel, encoding: str) -> Server:
        flags = [f"--record={folder / 'recording'}", f"--record-config={record}"] if record else []
        return launch_shoal(folder, model, encoding, others=others, num_instances=num_instances, flags=flags)

    return replace(PEERS[0], name=name, title=title, launch=launch, background=background)


_PLAIN = _setting("plain", "plain")
_ALONE = _setting("plain", "plain", ())
_MODELS = [replace(DIGITS, name=f"{DIGITS.name}_{number}") for number in range(1, NUM_MODELS)]


def _beside(
    name: str, what: str, short: str, background: Callable[[int], AbstractContextManager[object]], figure: Figure,
    target: float,
) -> Comparison:  # fmt: skip
    return Comparison(name, what, _PLAIN, _setting(name, f"with {short}", background=background), figure, target)


COMPARISONS = (
    _beside(
        "idle", "1,000 idle keep-alive connections", "1,000 idle connections", _guests(IDENTITY_16, stays=True),
        Figure.RATE, 0.85,
    ),
    Comparison(
        "models", f"{NUM_MODELS} loaded models instead of 1, the others in ONNX; the one is asked",
        _ALONE, _setting("models", f"{NUM_MODELS} models", _MODELS), Figure.RATE, 0.85,
    ),
    Comparison(
        "instances", f"{NUM_INSTANCES} instances of the model instead of 1",
        _ALONE, _setting("instances", f"{NUM_INSTANCES} instances", (), NUM_INSTANCES), Figure.RATE, 0.85,
    ),
    _beside(
        "half-heads", "1,000 clients that sent half a head and fell silent", "1,000 half heads",
        _guests(IDENTITY_16, lambda whole: whole[: whole.index(b"\r\n\r\n") // 2]), Figure.P99, 1.5,
    ),
    _beside(
        "half-bodies", "1,000 clients that sent half a body of 16 floats and fell silent", "1,000 half bodies",
        _guests(IDENTITY_16, lambda whole: whole[:-32]), Figure.P99, 1.5,
    ),
    _beside(
        "half-images", "1,000 clients that sent half a body of 602 KB and fell silent", "1,000 half images",
        _guests(IDENTITY_IMAGE, lambda whole: whole[: len(whole) // 2]), Figure.P99, 1.5,
    ),
    _beside(
        "slow-readers", "1,000 clients that read a response of 602 KB at 4 KB/s", "1,000 slow readers",
        _guests(IDENTITY_IMAGE, sips=True), Figure.P99, 1.5,
    ),
    _beside(
        "slow-large", "50 clients that read a response of 8 MB at 4 KB/s", "50 slow readers of 8 MB",
        _guests(replace(ANY_SIZE, dims=(2_000_000,)), size=NUM_LARGE_READERS, sips=True), Figure.P99, 1.5,
    ),
    _beside(
        "large-json", "60 MB of JSON on one connection, again and again", "60 MB of JSON", _large_bodies,
        Figure.P99, 2.0,
    ),
    Comparison(
        "record-others", "a recording of other models: the one that is asked is not recorded",
        _ALONE, _setting("record-others", "others recorded", (), record="models=other"), Figure.CPU, 1.01,
    ),
    Comparison(
        "record", "a recording of every request",
        _ALONE, _setting("record", "recorded", (), record="max-size=1GiB"), Figure.CPU, 1.3,
    ),
    Comparison(
        "page", "an open page, which asks for its figures once a second",
        _ALONE, _setting("page", "with an open page", (), background=_open_page), Figure.CPU, 1.02,
    ),
)  # fmt: skip
