"""The verb `infer`: one request to a running server, through shared memory, HTTP or gRPC.

The inputs are read as the verb `run` reads them (run_inputs.py), by the configuration that the server serves.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.cli.operate import client_at, seconds
from shoal.cli.request_arguments import add_requests, count, name_and_value, parameter
from shoal.cli.response_text import PrintedResponse, as_json, as_text, times_text
from shoal.cli.timing_text import timing_text
from shoal.cli.verb import EXIT_DONE, WHICH_MODEL, VerbParser, run_verb
from shoal.passwords import shown_url

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.cli.run_inputs import RunRequest
    from shoal.client.result import Result
    from shoal.client.sync import Client

_HELP = """\
Ask a model of a running server once. Without --url the request goes through the shared memory of this user's server on
this machine; with one, over the network.

Examples:
  shoal infer simple --sample ones
  shoal infer text_classification text='school of fish'
  shoal infer digits image=@digit.npy --output label
  shoal infer resnet image=@cat.jpg,imagenet
  shoal infer digits --data model_repository/digits/request.json --url http://gpu-1:8000
  shoal infer repeat IN=[4,2] DELAY=[500,500] WAIT=0    # a model that streams: each response as it comes

Options:
  <input>=<value>             a tensor: JSON, @file.json, @file.npy, plain text for a BYTES input, or @file, whose bytes
                              become one element of it. @file.png (.jpg …) for numbers: a picture in the size of the
                              input, its pixels from 0 to 255, or as in @file.png,0..1 or @file.png,imagenet. A value
                              without the batch dimension becomes a batch of 1
  --data <file>               requests from a file: what POST …/infer takes, perf_analyzer's {"data": [{…}, …]}, just
                              {"<name>": <value>, …}, or a recording, of which the first 1,000 requests to the model;
                              several are sent one after the other
  --sample zeros|ones|random  values for every input that is not given, with the sizes of the configuration (-1 = 1)
  --output <name>             only this output; repeat it for several
  --parameter <key>=<value>   a request parameter, a number, true or false, or else a text; repeat it for several
  --version <number>          which version of the model (default: the one that the server chooses)
  --url <url>                 http://host:port, grpc://host:port, or the path of the server's socket
                              (default: $SHOAL_URL, or this user's server on this machine)
  --timeout <seconds>         how long to wait for each response (default: 60)
  --repeat <count>            ask so many times, and print how long it took
  --timing                    print where each request's time went, too (not with --url)
  --json                      print JSON, as POST …/infer answers; a line for each response
  --help                      print this and exit

Exit codes: 0 done; 1 the command is wrong; 2 the server refused; 3 no answer.
"""
#: Request parameters that `infer` and `stream` of shoal.Client take as arguments of their own, not in `parameters`.
_SEQUENCE_ARGUMENTS = ("sequence_id", "sequence_start", "sequence_end", "priority")


def infer(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Send the request and print its responses; returns the exit code."""
    parser = VerbParser("infer", "<model> [<input>=<value> …] [options]", _HELP)
    add_requests(parser, WHICH_MODEL)
    parser.add_argument("--input", action="append", default=[], type=name_and_value)  # as `shoal run` takes it
    parser.add_argument("--version", default="")
    parser.add_argument("--url")
    parser.add_argument("--timeout", type=seconds, default=60.0)
    parser.add_argument("--repeat", type=count, default=1)
    parser.add_argument("--timing", action="store_true")
    return run_verb(parser, argv, lambda arguments: _infer(arguments, environ))


def _infer(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from shoal.cli.answers import CONFIG
    from shoal.cli.remote import answered
    from shoal.cli.run_inputs import read_requests
    from shoal.model_config.signature import Signature

    with client_at(arguments.url, environ, arguments.timeout) as client:
        config = client.model_config(arguments.model, version=arguments.version)
        place = arguments.url or environ.get("SHOAL_URL") or "the server's socket"
        config = answered(config, CONFIG, shown_url(place))
        given = [*arguments.inputs, *arguments.input]
        requests = read_requests(config, given, arguments.data, arguments.sample)
        signature = Signature.from_config(config)
        is_decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled"))
        times_ms: list[float] = []
        for _ in range(arguments.repeat):
            start_s = time.perf_counter()
            for request in requests:
                for result in _results(client, request, arguments, is_decoupled=is_decoupled):
                    printed = PrintedResponse(
                        result.model_name, result.model_version, result, result.parameters, request.id, signature
                    )
                    print(as_json(printed) if arguments.json else as_text(printed), flush=True)
                    if result.timing is not None:
                        print(timing_text(result.timing), file=sys.stderr)
            times_ms.append((time.perf_counter() - start_s) * 1e3)
    if arguments.repeat > 1:
        print(times_text(times_ms), file=sys.stderr)
    return EXIT_DONE


def _results(
    client: "Client", request: "RunRequest", arguments: argparse.Namespace, *, is_decoupled: bool
) -> "Iterator[Result]":
    """The responses to one request, as they come."""
    parameters = {**request.parameters, **{key: parameter(value) for key, value in arguments.parameter}}
    more: dict[str, Any] = {key: parameters.pop(key) for key in _SEQUENCE_ARGUMENTS if key in parameters}
    more |= {"version": arguments.version, "timeout": arguments.timeout, "request_id": request.id}
    more["timing"] = arguments.timing
    outputs = arguments.output or request.outputs or None
    if is_decoupled:
        yield from client.stream(arguments.model, request.inputs, outputs, parameters=parameters, **more)
    else:
        yield client.infer(arguments.model, request.inputs, outputs, parameters=parameters, **more)
