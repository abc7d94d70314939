"""The verb `bench`: a model of a running server under load, and its throughput and latencies."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.cli.bench import arguments as values
from shoal.cli.operate import seconds
from shoal.cli.request_arguments import add_requests, count, parameter, writable, write
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, EXIT_REFUSED, WHICH_MODEL, VerbParser, not_empty, run_verb, show_before
from shoal.errors import InvalidArgumentError

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.cli.bench.measurement import Level, Measured, Plan
    from shoal.cli.bench.targets import Target
    from shoal.cli.bench.window import Window
    from shoal.cli.run_inputs import RunRequest
    from shoal.model_config.signature import Signature

EXIT_MISSED = 4
_HELP = """\
Load a model of a running server, and show its throughput, its latencies, and how much of them the server's queue and
model take. A closed loop keeps a number of requests under way; an open loop (--rate) sends at times that are set
before, and counts latency from those, so that a server that stalls is not spared what it kept waiting.

Examples:
  shoal bench digits
  shoal bench digits --concurrency 1:64 --svg digits.svg
  shoal bench digits --rate 500 --goal p99=20ms             # exit code 4 if it is missed
  shoal bench resnet --shape image:3,224,224 --batch-size 8 --url grpc://gpu-1:8001
  shoal bench digits --protocol shm --concurrency 16        # through the shared memory of this machine's server
  shoal bench digits --compare http://127.0.0.1:9000        # two servers in turns, and the ratios
  shoal bench digits --compare-model digits_batched         # two configurations of a model on one server

The load:
  --concurrency <levels>      requests at a time: 8, 1:64 by doubling, or 8:64:8 by steps (default: 1:16)
  --rate <levels>             requests a second instead: 500, or 100:1000:100 by steps
  --arrivals poisson|constant with --rate: requests come at random, as from many clients, or evenly (default: poisson)
  --connections <count>       with --rate: the most requests at a time; others that are due wait (default: 256)
  --url <url>                 http://host:port, grpc://host:port, or the path of the server's socket for shared memory
                              (default: $SHOAL_URL, or http://127.0.0.1:8000)
  --protocol http|grpc|shm    ask the server of this machine by that protocol, at its default place
  --compare <url>             load a second server, too, a window each in turns
  --compare-model <model>     load a second model, too, a window each in turns: one of another name (digits_batched) or
                              another version (digits:2), on the same server or on that of --compare
  --version <number>          which version of the model (default: the one that the server chooses)

The requests:
  <input>=<value>             a tensor, as `shoal infer` takes it: JSON, @file.json, @file.npy, a text
  --data, --input-data <file> requests from a file, sent in turns: perf_analyzer's {"data": [{…}, …]}, what
                              POST …/infer takes, or a recording, of which the first 1,000 requests to the model
  --sample zeros|ones|random  values for every input that is not given (default: random, the same in every run)
  --shape <input>:<size>,…    the shape of a made-up input, for sizes that the model leaves open; repeat it for several
  --batch-size <rows>         rows of a request, for models that take batches (default: 1)
  --output <name>             only this output; repeat it for several
  --parameter <key>=<value>   a request parameter; repeat it for several
  --timeout <seconds>         a request that takes longer counts as failed (default: 60)

The measurement:
  --warm-up <seconds>         load that is not measured, before each level (default: 0.5; 0: none)
  --window <seconds>          length of one window (default: 1)
  --requests <count>          the least requests of a window, which lasts until they have ended (default: 10)
  --windows <count>           the most windows of a level; it ends before, once three agree (default: 10)
  --stability <percent>       how far throughput and p50 of windows that agree may differ (default: 10)
  --goal <goal>               p99=20ms, p50=800us or throughput=500; repeat it for several. Met if one level meets all
  --svg <file>                write a picture of throughput and latencies
  --json                      print JSON
  --help                      print this and exit

QUEUE, COMPUTE and ROWS/BATCH are the server's own means, CLIENT the share of its time in which this client did not
wait. Exit codes: 0 done; 1 the command is wrong; 2 requests failed; 3 no answer; 4 a goal was missed.
"""


def bench(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Measure a model and print its figures; returns the exit code."""
    parser = VerbParser("bench", "<model> [<input>=<value> …] [options]", _HELP)
    add_requests(parser, WHICH_MODEL, "random")
    levels = parser.add_mutually_exclusive_group()
    levels.add_argument("--concurrency", type=values.concurrencies, default=[1, 2, 4, 8, 16])
    levels.add_argument("--rate", type=values.rates)
    parser.add_argument("--arrivals", choices=("poisson", "constant"), default="poisson")
    parser.add_argument("--connections", type=count, default=256)
    parser.add_argument("--url")
    parser.add_argument("--protocol", choices=("http", "grpc", "shm"))
    parser.add_argument("--compare", type=not_empty("With which server? --compare <url> names the second one.", str))
    parser.add_argument("--compare-model")
    parser.add_argument("--version", default="")
    parser.add_argument("--shape", action="append", default=[], type=values.shape)
    parser.add_argument("--batch-size", type=count, default=1)
    parser.add_argument("--timeout", type=seconds, default=60.0)
    parser.add_argument("--warm-up", type=_seconds_or_none, default=0.5)
    parser.add_argument("--window", type=seconds, default=1.0)
    parser.add_argument("--requests", type=count, default=10)
    parser.add_argument("--windows", type=count, default=10)
    parser.add_argument("--stability", type=values.percent, default=10.0)
    parser.add_argument("--goal", action="append", default=[], type=values.goal)
    parser.add_argument("--svg", type=writable)
    return run_verb(parser, argv, lambda given: _bench(given, environ))


def _seconds_or_none(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else seconds(text)


def _bench(given: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from shoal.cli.bench import measurement, report
    from shoal.cli.bench.targets import rows_of, target
    from shoal.model_config.signature import Signature

    sides = _sides(given, environ)
    with ExitStack() as stack:
        targets = []
        for side in sides:
            try:
                targets.append(target(side.url, side.protocol, side.model, side.version, given.timeout))
            except (ValueError, InvalidArgumentError) as error:
                raise CommandLineError(str(error)) from None
            stack.callback(targets[-1].close)
        config = targets[0].config()
        signature = Signature.from_config(config)
        requests = _requests(given, config)
        plan = measurement.Plan(
            given.warm_up, given.window, given.requests, given.windows, given.stability, given.timeout
        )
        found = [_measured(targets, signature, requests, level, plan) for level in _levels(given)]
    rows = rows_of(signature, requests[0].inputs)
    measured = list(zip(*found, strict=True))
    is_met, sentences = report.judged(given.goal, measured[0]) if given.goal else (True, [])
    shares = [measurement.ratios(pair[0], pair[1], report.PERCENTS) for pair in found] if len(targets) > 1 else []
    if shares:
        titles = [f"{side.title} at {each.url}" for side, each in zip(sides, targets, strict=True)]
        text = report.as_compared(measured[0], measured[1], shares, titles)
    else:
        text = f"Model '{given.model}' at {targets[0].url}\n\n{report.as_text(measured[0], rows)}"
    document = _as_json(given, sides, targets, measured, shares, rows, is_met=is_met)
    show_before(partial(_write, given, measured), document, "\n".join([text, *sentences]), as_json=given.json)
    if any(each.whole.num_errors or not each.whole.latencies_ns for side in measured for each in side):
        return EXIT_REFUSED
    return EXIT_DONE if is_met else EXIT_MISSED


class _Side(NamedTuple):
    """A model and its server, as they are named on the command line."""

    url: str | None
    protocol: str | None
    model: str
    version: str

    @property
    def title(self) -> str:
        """The model, with the version that was asked for."""
        return f"{self.model}:{self.version}" if self.version else self.model


def _sides(given: argparse.Namespace, environ: Mapping[str, str]) -> list[_Side]:
    """The model that is measured, and the one that it is compared with, if there is one."""
    own = _Side(
        given.url or (None if given.protocol else environ.get("SHOAL_URL")), given.protocol, given.model, given.version
    )
    other = own if given.compare is None else own._replace(url=given.compare, protocol=None)
    if given.compare_model is not None:
        name, _, version = given.compare_model.partition(":")
        other = other._replace(model=name or given.model, version=version)
    return [own, other] if given.compare is not None or given.compare_model is not None else [own]


def _requests(given: argparse.Namespace, config: Mapping[str, Any]) -> "list[RunRequest]":
    """The requests that are sent in turns. Raises CommandLineError where they do not fit the model."""
    from dataclasses import replace

    from shoal.cli.run_inputs import read_requests

    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise CommandLineError(
            f"Model '{given.model}' streams (decoupled): bench measures models that answer a request once."
        )
    requests = read_requests(
        dict(config), given.inputs, given.data, given.sample, shapes=dict(given.shape), rows=given.batch_size
    )
    more = {key: parameter(value) for key, value in given.parameter}
    return [
        replace(each, parameters={**each.parameters, **more}, outputs=given.output or each.outputs) for each in requests
    ]


def _levels(given: argparse.Namespace) -> "list[Level]":
    from shoal.cli.bench.measurement import Level

    if given.rate is None:
        return [Level(each) for each in given.concurrency]
    return [Level(given.connections, rate, given.arrivals == "poisson") for rate in given.rate]


def _measured(
    targets: "Sequence[Target]",
    signature: "Signature",
    requests: "Sequence[RunRequest]",
    level: "Level",
    plan: "Plan",
) -> "list[Measured]":
    """Measure a level of load on connections of its own; returns its figures, by target. Windows are shown on a
    terminal as they end."""
    from shoal.cli.bench.measurement import measure

    with ExitStack() as stack:
        transports = [stack.enter_context(closing(each.connect(signature, requests))) for each in targets]
        show = partial(_show, level.title) if sys.stderr.isatty() else lambda *_: None
        found = measure(targets, transports, level, plan, show)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return found


def _show(title: str, _target: int, number: int, window: "Window") -> None:
    text = f"{title}: window {number + 1}, {window.requests_per_s:,.0f} requests/s"
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _as_json(
    given: argparse.Namespace,
    sides: Sequence[_Side],
    targets: "Sequence[Target]",
    measured: "Sequence[Sequence[Measured]]",
    shares: Sequence[Any],
    rows: int,
    *,
    is_met: bool,
) -> dict[str, Any]:
    from shoal.cli.bench import report

    servers = [
        {"url": each.url, "protocol": each.protocol, "levels": [report.as_json(level, rows) for level in levels]}
        for each, levels in zip(targets, measured, strict=True)
    ]
    document: dict[str, Any] = {"model": given.model, "rows_per_request": rows, **servers[0]}
    if given.goal:
        document["goals"] = {"wanted": [each.text for each in given.goal], "is_met": is_met}
    if shares:
        document["compared"] = {"model": sides[1].title, **servers[1]}
        document["ratios"] = [
            {"throughput": each.throughput, **{f"p{percent:g}": share for percent, share in each.latency.items()}}
            for each in shares
        ]
    return document


def _write(given: argparse.Namespace, measured: "Sequence[Sequence[Measured]]") -> None:
    """Write the picture, if the command line names a file for it. Raises CommandLineError if that cannot be written."""
    if given.svg is None:
        return
    from shoal.cli.bench import picture

    series = []
    for name, side in zip(("A ", "B ") if len(measured) > 1 else ("",), measured, strict=True):
        for percent in (50.0, 99.0):
            points = [
                (each.whole.requests_per_s, each.whole.percentile_ms(percent) or 0.0, each.level.title) for each in side
            ]
            series.append(picture.Series(f"{name}p{percent:g}", points))
    goal_ms = next((each.most_ms for each in given.goal if each.most_ms), None)
    write(given.svg, picture.svg(f"Model {given.model}: latency against throughput", series, goal_ms))
