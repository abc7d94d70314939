"""The verb `run`: one request to a model, without a server. `run_inputs.py` makes the request's inputs."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from shoal.cli.request_arguments import add_requests, count, name_and_value, parameter
from shoal.cli.response_text import PrintedResponse, as_json, as_text, times_text
from shoal.cli.serve import CommandLineError
from shoal.cli.served_paths import absent
from shoal.cli.verb import EXIT_DONE, FailedError, VerbParser, models_on_stderr, run_verb, show_error
from shoal.errors import ShoalError
from shoal.file_kinds import is_dir, is_file

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.cli.run_inputs import RunRequest
    from shoal.model_config.signature import Signature
    from shoal.testing import Response, Server

EXIT_FAILED = 2
#: The logger of failed requests, whose errors the command prints itself.
_FAILURE_LOG = "shoal.batcher.failure_log"

_HELP = """\
Ask a model once, in this process: no server, no ports, and a breakpoint in model.py works. The directory is that of
one model, with its config.pbtxt and versions in it.

Examples:
  shoal run models/simple --sample ones
  shoal run models/simple INPUT0=[1,2,3,…] INPUT1=@b.npy
  shoal run models/tokenizer 'text=school of fish' --json
  shoal run models/digits --data request.json --repeat 100
  shoal run models/digits --record 'recordings#17'             # what a server was asked, in the same batch
  shoal run models/pipeline --load encoder --sample random     # with a model that it calls; an ensemble's steps are
                                                               # loaded without being named

Options:
  <input>=<value>             a tensor: JSON, @file.json, @file.npy, @file.png (.jpg …; pixels from 0 to 255, or as in
                              @file.png,0..1 and @file.png,imagenet), or plain text for a BYTES input. A value without
                              the batch dimension becomes a batch of 1, and a flat list gets the shape that it fits
  --data <file>               requests from a file: what POST …/infer takes, perf_analyzer's {"data": [{…}, …]}, just
                              {"<name>": <value>, …}, or a recording, of which the first 1,000 requests to the model
  --sample zeros|ones|random  values for every input that is not given, with the sizes of the configuration (-1 = 1)
  --output <name>             only this output; repeat it for several
  --parameter <key>=<value>   a request parameter, a number, true or false, or else a text; repeat it for several.
                              All requests to a model with a sequence batcher are one sequence, unless sequence_id,
                              sequence_start and sequence_end say otherwise
  --version <number>          which version of the model (default: the latest)
  --load <model>              another model of the same repository, which this one calls; repeat it for several
  --record <file>#<number>    a request of a recording, with those that were executed with it, as one batch
  --repeat <count>            ask so many times, and print how long it took
  --json                      print JSON, as POST …/infer answers
  --traceback                 where the model raises an error, show its traceback
  --help                      print this and exit

Exit codes: 0 done; 1 the command is wrong; 2 the model could not be loaded, or answered with an error.
"""


def run(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Run a model once; returns the exit code."""
    parser = VerbParser("run", "<model directory> [<input>=<value> …] [options]", _HELP)
    add_requests(parser, "Which model? Name its directory.")
    parser.add_argument("--input", action="append", default=[], type=name_and_value)  # an older form
    parser.add_argument("--version", type=int)
    parser.add_argument("--load", action="append", default=[])
    parser.add_argument("--record")
    parser.add_argument("--repeat", type=count)
    parser.add_argument("--traceback", action="store_true")
    return run_verb(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    import logging

    from shoal.cli.run_inputs import read_requests
    from shoal.testing import Server

    handler = logging.StreamHandler()  # to stderr
    handler.addFilter(lambda record: record.name != _FAILURE_LOG)
    logging.basicConfig(
        level=logging.INFO, format="%(levelname)s %(filename)s:%(lineno)d %(message)s", handlers=[handler]
    )
    model = Path(os.path.realpath(arguments.model))  # Path.resolve raises RuntimeError for a link to itself
    if not is_dir(model):
        if is_file(model):
            raise CommandLineError(
                f"'{arguments.model}' is a file: 'shoal init <model directory> --from {arguments.model}' writes the "
                "directory of a model with it."
            )
        raise CommandLineError(absent("directory", Path(arguments.model)))
    try:
        # The server finds models that this one calls, and those of an ensemble's steps, beside the model's directory.
        with (
            models_on_stderr(as_json=arguments.json) as stdout,
            Server(model, [*arguments.load, model.name], raise_errors=arguments.traceback) as server,
        ):
            if arguments.record is not None:
                return _run_record(server, model.name, arguments, stdout)
            config = server.config(model.name, arguments.version)
            requests = read_requests(config, [*arguments.inputs, *arguments.input], arguments.data, arguments.sample)
            parameters = {key: parameter(value) for key, value in arguments.parameter}
            for number, request in enumerate(requests):
                said = {**request.parameters, **parameters}
                if "sequence_batching" in config and "sequence_id" not in said:
                    said |= {"sequence_id": 1, "sequence_start": not number, "sequence_end": request is requests[-1]}
                _ask(server, model.name, request, said, arguments, stdout)
    except ShoalError as error:
        calls = "Failed for execute the inference request" in str(error)
        advice = ["What the model calls is loaded from beside it: --load <model>."] if calls else []
        raise FailedError(f"{error.words}: {error}", *advice) from None
    except Exception as error:
        own = _own_frames(error.__traceback__)
        if not arguments.traceback or own is None:
            raise
        traceback.print_exception(error.with_traceback(own))
        raise FailedError(f"The model has raised {type(error).__name__}: {error}") from None
    return EXIT_DONE


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback from the model's first on; None if the model has none there."""
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("shoal."):
        frames = frames.tb_next
    return frames


def _run_record(server: "Server", model: str, arguments: argparse.Namespace, stdout: TextIO) -> int:
    """Execute the batch of a recorded request, and print the answers to all its requests; returns the exit code."""
    from shoal.cli.records import open_recording, read
    from shoal.cli.replay import chosen
    from shoal.cli.replay_targets import LocalModels

    recording, number = open_recording(arguments.record)
    if not number:
        raise CommandLineError("Which request of the recording? --record <file>#<number>")
    batch = [each for each in chosen(read(recording), number, with_batch=True) if each.model == model]
    if not batch:
        raise CommandLineError(f"Request {number} of the recording is not to model '{model}', or there is none.")
    batch.sort(key=lambda each: 0 if each.execution is None else each.execution.position)
    version = arguments.version or None
    signature = _signature(server, model, version)
    code = EXIT_DONE
    for request, answer in zip(batch, LocalModels(server, version).replay_batch(batch), strict=True):
        if answer.error is not None:
            said = f"request {request.number}: {answer.error.words}: {answer.error}"
            show_error(said, as_json=arguments.json, stdout=stdout)
            code = EXIT_FAILED
        for outputs in answer.responses:
            printed = PrintedResponse(model, str(version or request.version), outputs, {}, request.id, signature)
            shown = as_json(printed) if arguments.json else f"request {request.number}\n{as_text(printed)}"
            print(shown, file=stdout)
    return code


def _signature(server: "Server", model: str, version: int | None) -> "Signature":
    from shoal.model_config.signature import Signature

    return Signature.from_config(server.config(model, version))


def _ask(
    server: "Server",
    model: str,
    request: "RunRequest",
    parameters: Mapping[str, Any],
    arguments: argparse.Namespace,
    stdout: TextIO,
) -> None:
    """Send the request, once or --repeat times; print the last responses and, with --repeat, the times of the calls."""
    times_ms: list[float] = []
    responses: list[Response] = []
    for _ in range(arguments.repeat or 1):
        start_s = time.perf_counter()
        responses = server.stream(
            model,
            request.inputs,
            version=arguments.version,
            outputs=arguments.output or request.outputs,
            parameters=parameters,
            request_id=request.id,
        )
        times_ms.append((time.perf_counter() - start_s) * 1e3)
    signature = _signature(server, model, arguments.version)
    for response in responses:
        printed = PrintedResponse(
            response.model_name, str(response.model_version), response.outputs, response.parameters, response.id,
            signature,
        )  # fmt: skip
        print(as_json(printed) if arguments.json else as_text(printed), file=stdout)
    if arguments.repeat:
        print(times_text(times_ms), file=sys.stderr)
