"""What a step of an ensemble costs the batcher, in instructions: python -m bench.ensemble_cost [CASE...]

The batcher's own exchange, over real rings and slabs, in this one process; between two steps of it the program plays
clients and workers. Only what the exchange does is counted. Each case is three models behind one client: all in a row,
or all at once; beside it the same models asked one by one. Half of the clients are a step ahead of the others.

  python -m bench.ensemble_cost                     all cases
  python -m bench.ensemble_cost --profile chain-c1  where the time goes, by function
"""

import argparse
import cProfile
import pstats
import sys
import time
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bench.errors import BenchmarkError
from bench.own_instructions import OwnInstructions
from shoal.datatypes import FP32
from shoal.model_config.messages import Config
from shoal.request import InferRequest, InferResponse, TensorRef, pack_request, pack_response
from shoal.shm.layout import BATCH_ITEM, BATCHER, DONE, FREE, RELEASE, REPLY, REQUEST, UNIT, B, Geometry, P, pack_span
from shoal.shm.slab import Block, Slab, SlabView
from tests.batcher.star import CLIENT, Star, make_segment

MODEL, ENSEMBLE, WORKER = 5, 9, 31
NUM_STEPS = 3
SHAPE, NBYTES = (1, 16), 64
WARM_UP_CALLS = 200
NUM_UNITS = 256  # of the batcher's slab


@dataclass(frozen=True, slots=True)
class Case:
    """An ensemble's steps, by what they read and write; none: a model alone."""

    name: str
    num_at_once: int
    steps: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ("Y",)


CHAIN = (("X", "a"), ("a", "b"), ("b", "Y"))
FAN = (("X", "a"), ("X", "b"), ("X", "c"))
CASES = tuple(
    Case(f"{name}-c{num}", num, steps, outputs)
    for num in (1, 16)
    for name, steps, outputs in (("plain", (), ("Y",)), ("chain", CHAIN, ("Y",)), ("fan", FAN, ("a", "b", "c")))
)


def _config(name: str, outputs: tuple[str, ...], **more: Any) -> Config:
    return {
        "name": name, "max_batch_size": 32, "input": [_tensor("X")], "output": [_tensor(each) for each in outputs],
        **more,
    }  # fmt: skip


def _tensor(name: str) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_FP32", "dims": [16], "optional": False, "label_filename": ""}


def _step(inputs: str, outputs: str) -> dict[str, Any]:
    return {"model_name": "m", "model_version": -1, "input_map": {"X": inputs}, "output_map": {"Y": outputs}}


class World(Star):
    """The star, with one client that asks so many things at once, and a worker for each model."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        batching = {"dynamic_batching": {"preferred_batch_size": [], "max_queue_delay_microseconds": 0}}
        models = [self.add_model(MODEL + step, _config("m", ("Y",), **batching), 1000) for step in range(NUM_STEPS)]
        self.target = MODEL
        if case.steps:
            own, self.own_view = make_segment(BATCHER, self.batcher_owner, Geometry(0, NUM_UNITS * UNIT))
            self.exchange.ensembles.connect(own)
            scheduling = {"step": [_step(*each) for each in case.steps]}
            config = _config("e", case.outputs, ensemble_scheduling=scheduling)
            self.target = self.add_ensemble(ENSEMBLE, config, [each.id for each in models]).id
        self.client = self.add_client(CLIENT)
        self.workers = [
            (end := self.add_worker(WORKER + step, model), Slab(end.own)) for step, model in enumerate(models)
        ]
        self._slab = Slab(self.client.own)
        self._views = {end.owner: SlabView(end.own_view) for end, _ in self.workers}
        self._header = pack_request(InferRequest("", (TensorRef("X", FP32.wire, SHAPE, 0, NBYTES),), (), {}))
        self._said = pack_response(InferResponse((TensorRef("Y", FP32.wire, SHAPE, 0, NBYTES),), {}))
        self._block = self._request_block()
        # Changed by ask.
        self._number = 0

    def _request_block(self) -> Block:
        block = self._slab.allocate(UNIT)
        assert block is not None
        block.memory[NBYTES : NBYTES + len(self._header)] = self._header
        return block

    def ask(self) -> None:
        """One request more; all lie in the same block."""
        self._number += 1
        span = pack_span(NBYTES, len(self._header))
        self.client.writer.push(
            (REQUEST, self._number, self.target, self._block.ref, span, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0)
        )

    def work(self) -> None:
        """What every worker does of what it has been given."""
        for end, slab in self.workers:
            records = end.heard()
            for record in records:
                slab.free(record[3] if record[0] == FREE else record[B.FREED])
            items = [record for record in records if record[0] == BATCH_ITEM]
            for _, batch in groupby(items, key=lambda item: item[B.BATCH]):
                block = slab.allocate(UNIT)
                assert block is not None
                now = time.monotonic_ns()
                for index, item in enumerate(batch):
                    offset = 1024 + len(self._said) * index
                    block.memory[offset : offset + len(self._said)] = self._said
                    span = pack_span(offset, len(self._said))
                    end.writer.push((DONE, item[B.KEY], item[B.BATCH], 0, block.ref, span, now, now, now, now))
            end.writer.publish()

    def hear(self) -> int:
        """How many answers have come; they are given back."""
        replies = [record for record in self.client.heard() if record[0] == REPLY]
        for reply in replies:
            if reply[P.STATUS]:
                raise BenchmarkError(f"a request failed: {reply}")
            self.client.writer.push((RELEASE, reply[P.NUMBER]))
            if num_pieces := reply[P.PIECES]:
                block = SlabView(self.own_view).open(reply[P.BLOCK])
                assert block is not None
                for ref in block[: 8 * num_pieces].cast("Q").tolist():
                    self.client.writer.push((RELEASE, reply[P.NUMBER], 0, ref))
        return len(replies)


class Run:
    """A case, from the first request on."""

    def __init__(self, case: Case, num_calls: int, profile: cProfile.Profile | None) -> None:
        self._world = World(case)
        self._num_calls = num_calls
        self._profile = profile
        self._silent = deque(range(case.num_at_once))
        self._half = max(1, case.num_at_once // 2)
        #: Of the exchange, since it was warm.
        self.instructions, self.cpu_s, self.num_answers = 0, 0.0, 0

    def run(self) -> None:
        """All of it."""
        world, counter = self._world, OwnInstructions()
        num_warm_up, num_to_ask = WARM_UP_CALLS, 0
        while self.num_answers < self._num_calls:
            for _ in range(min(len(self._silent), self._half)):
                self._silent.popleft()
                num_to_ask += 1
            for _ in range(num_to_ask):
                world.ask()
            world.client.writer.publish()
            if self._profile is not None and not num_warm_up:
                self._profile.enable()
            mark_s, mark = time.thread_time(), counter.read()
            world.exchange.step(time.monotonic_ns())
            instructions, cpu_s = counter.read() - mark - counter.own, time.thread_time() - mark_s
            if self._profile is not None:
                self._profile.disable()
            world.work()
            num_to_ask = world.hear()
            if num_warm_up:
                num_warm_up = max(0, num_warm_up - num_to_ask)
                continue
            self.instructions += instructions
            self.cpu_s += cpu_s
            self.num_answers += num_to_ask
        counter.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.name for case in CASES))
    parser.add_argument("--calls", type=int, default=3000, help="per case (default: 3000)")
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    options = parser.parse_args()
    for case in CASES:
        if options.cases and case.name not in options.cases:
            continue
        profile = cProfile.Profile() if options.profile else None
        run = Run(case, options.calls, profile)
        run.run()
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
            continue
        num_steps = len(case.steps) or 1
        instructions, cpu_us = run.instructions / run.num_answers, 1e6 * run.cpu_s / run.num_answers
        print(
            f"{case.name:10} {instructions / 1000:8.1f}k instructions {cpu_us:7.1f} µs CPU per request, by step "
            f"{instructions / num_steps / 1000:7.1f}k {cpu_us / num_steps:6.1f} µs"
        )


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench.ensemble_cost: {error}")
