"""Streams of gRPC side by side, on few connections, with ordinary and decoupled models, and left at random.

`python -m tests.end_to_end.grpc_streams` is the long form, test_grpc_streams.py the short one. Each stream asks for
answers that only it can have asked for, and checks that it gets those, in their order, and no others. After a warm-up
that does everything once, the server's memory, descriptors and shared pages at rest are noted; at the end they must be
the same.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from shoal.frontend.grpc.messages import service
from tests.end_to_end.server import Server, footprint, imbalances, lasting, serving
from tests.reliability.soak import FLAGS, MAX_GROWTH, at_rest, resident_bytes, write_models

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
#: Streams of one connection; HTTP/2's clients open another one beyond a hundred.
PER_CONNECTION = 50
#: Answers of one request to a decoupled model; those of a request that is left are more than anybody waits for.
MOST, LEFT = 12, 3000


def request(model: str, id_: str, values: "np.ndarray[Any, Any]") -> bytes:
    """A ModelInferRequest that asks for its end, too."""
    message = service.ModelInferRequest(model_name=model, id=id_)
    message.inputs.add(name="IN", datatype="INT32", shape=values.shape)
    message.raw_input_contents.append(values.astype(np.int32).tobytes())
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return bytes(message.SerializeToString())


class Streams:
    """So many streams at once against one server. `counts` is what they did, `faults` what was wrong."""

    def __init__(self, server: Server, num_streams: int, seed: int) -> None:
        self._server = server
        self._num_streams = num_streams
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    async def run(self, is_over: Callable[[], bool]) -> None:
        """One stream after the other in each place, until it is over."""
        target = f"127.0.0.1:{self._server.grpc_port}"
        options = (("grpc.use_local_subchannel_pool", 1),)  # or all channels would share one connection
        channels = [grpc.aio.insecure_channel(target, options) for _ in range(0, self._num_streams, PER_CONNECTION)]
        places = [self._fill(place, channels[place // PER_CONNECTION], is_over) for place in range(self._num_streams)]
        await asyncio.gather(*places)
        for channel in channels:
            await channel.close()

    async def _fill(self, place: int, channel: Any, is_over: Callable[[], bool]) -> None:
        number = 0
        while not is_over() and not self.faults:
            number += 1
            kind = self._random.choice((self._ordinary, self._decoupled, self._mixed, self._leave, self._leave_at_once))
            try:
                await kind(channel.stream_stream(PATH), place * 1_000_000 + number * 100)
                self.counts[kind.__name__.lstrip("_")] += 1
            except (AssertionError, grpc.aio.AioRpcError) as error:
                self.faults.append(f"{kind.__name__} in place {place}: {error!r}")

    async def _ordinary(self, stream: Any, first: int) -> None:
        """Answers of an ordinary model come in the order of their requests."""
        count = self._random.randint(1, 20)
        asked = [(f"{first + index}", np.full(1 + index % 3 * 3000, first + index)) for index in range(count)]
        answers = [answer async for answer in _answers(stream, [request("echo", *each) for each in asked])]
        assert [answer.id for answer in answers] == [id_ for id_, _ in asked]
        for answer, (_, values) in zip(answers, asked, strict=True):
            assert answer.parameters["triton_final_response"].bool_param
            assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.int32), values)

    async def _decoupled(self, stream: Any, first: int) -> None:
        """Every element of a request comes back by itself, in order, and then its end, whatever else is asked."""
        asked = {str(first + index): self._random.randint(0, MOST) for index in range(self._random.randint(1, 4))}
        heard: dict[str, list[int]] = {id_: [] for id_ in asked}
        ended = set()
        messages = [request("stream", id_, np.arange(count) + int(id_)) for id_, count in asked.items()]
        async for answer in _answers(stream, messages):
            assert answer.id not in ended
            if answer.parameters["triton_final_response"].bool_param:
                ended.add(answer.id)
            else:
                heard[answer.id] += np.frombuffer(answer.raw_output_contents[0], np.int32).tolist()
        assert heard == {id_: [int(id_) + index for index in range(count)] for id_, count in asked.items()}
        assert ended == set(asked)

    async def _mixed(self, stream: Any, first: int) -> None:
        """Both, and one that fails."""
        messages = [
            request("stream", "s", np.arange(3) + first),
            request("nope", "n", np.arange(1)),
            request("echo", "e", np.arange(2) + first),
        ]
        call = stream(_iterate(messages))
        found: Counter[str] = Counter()
        async for data in call:
            message = service.ModelStreamInferResponse.FromString(data)
            found[message.infer_response.id + ("!" if message.error_message else "")] += 1
        assert found == {"s": 4, "n!": 1, "e": 1}, found

    async def _leave(self, stream: Any, first: int) -> None:
        """In the middle of an answer of many parts."""
        call = stream(_iterate([request("stream", "l", np.arange(LEFT) + first)]))
        expected = first
        async for data in call:
            message = service.ModelStreamInferResponse.FromString(data)
            assert not message.error_message, message.error_message
            assert np.frombuffer(message.infer_response.raw_output_contents[0], np.int32).tolist() == [expected]
            expected += 1
            if self._random.random() < 0.2:
                break
        call.cancel()

    async def _leave_at_once(self, stream: Any, first: int) -> None:
        """Before anything has been answered, perhaps before anything was asked."""
        call = stream(_iterate([request("stream", "a", np.arange(LEFT) + first)]))
        await asyncio.sleep(self._random.choice((0, 0.001, 0.01)))  # any moment will do: none is waited for
        call.cancel()


async def _iterate(messages: list[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def _answers(stream: Any, messages: list[bytes]) -> AsyncIterator[Any]:
    """What comes back; no error."""
    async for data in stream(_iterate(messages)):
        message = service.ModelStreamInferResponse.FromString(data)
        assert not message.error_message, message.error_message
        yield message.infer_response


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(prog="grpc_streams", description="Streams side by side, left at random.")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(write_models(Path(directory)), *FLAGS, "--grpc-port=0") as server,
    ):
        streams = Streams(server, options.streams, options.seed)
        asyncio.run(streams.run(lasting(10.0)))
        before, before_bytes = at_rest(server), resident_bytes(server)
        asyncio.run(streams.run(lasting(options.seconds)))
        server.ledger_once(lambda ledger: not imbalances(ledger) and footprint(ledger) == before, before)
        after_bytes = resident_bytes(server)
        print(dict(streams.counts), streams.faults)
        print(f"memory {before_bytes >> 20} -> {after_bytes >> 20} MiB")
        return int(bool(streams.faults) or after_bytes > MAX_GROWTH * before_bytes)


if __name__ == "__main__":
    sys.exit(main())
