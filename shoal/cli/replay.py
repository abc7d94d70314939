"""The verb `replay`: sends a recording's requests again, to another server, version or configuration, and compares
answers."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.colour import printable
from shoal.cli.operate import client_at, seconds
from shoal.cli.records import WHICH_RECORDING, complain, open_recording, read
from shoal.cli.request_arguments import count, writable, write
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, models_on_stderr, not_empty, run_verb
from shoal.file_kinds import is_dir

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.cli.replay_comparison import Answer, Difference
    from shoal.recorder.recorded import RecordedRequest

EXIT_DIFFERENT = 2
#: The most differences that are printed (ours); --json has all.
_NUM_SHOWN = 10

_HELP = """\
Ask the requests of a recording again, with the spacing that they had, each at its time whatever becomes of the others
(open loop), and compare outcomes, values and latencies with the recorded ones. Without --against the requests go to
this user's server on this machine.

Examples:
  shoal replay recordings                                   # to the running server
  shoal replay recordings --speed 2 --against http://gpu-2:8000
  shoal replay recordings --version 3 --compare atol=1e-5   # is version 3 as good as what was recorded?
  shoal replay recordings --repo models --exact-batches     # in this process: what was one batch is one batch again
  shoal replay 'recordings#17' --repo models                # one request, in its batch; a crash ends this process, too

Options:
  --against <target>    a server: http://host:port, grpc://host:port, or the path of its socket; or a number or a
                        directory, as --version and --repo have it
  --repo <directory>    a model repository, whose models are executed in this process, without a server
  --exact-batches       with --repo: requests that were executed together are executed together, in their order
  --version <number>    of the models, whatever version was recorded
  --speed <factor>      2: in half of the time; 0: as fast as answers come (default: 1)
  --timeout <seconds>   how long to wait for each response of a server (default: 60)
  --model <name>        only requests to this model
  --limit <number>      only so many, the first
  --compare <tolerance> atol=1e-5,rtol=1e-3: for floating-point values; top1: where the largest value stands;
                        cosine=0.999: the direction of rows; none: values are not compared; scores:top1 for one output
                        (default: bits must be equal)
  --report <file>       write a page of HTML with pictures of latencies, and of how far values are apart
  --json                print JSON, for programs
  --help                print this and exit

Exit codes: 0 all is as it was; 1 the command is wrong; 2 outcomes or values differ; 3 no answer from the server.
"""


def replay(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Replay a recording; returns the exit code."""
    parser = VerbParser("replay", "<file or folder>[#<number>] [options]", _HELP, server_flag="--against")
    parser.add_asked("recording", WHICH_RECORDING)
    parser.add_argument("--against")
    parser.add_argument("--repo", type=not_empty("Which models? --repo names the directory above them.", Path))
    parser.add_argument("--exact-batches", action="store_true")
    parser.add_argument("--version", type=int)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--timeout", type=seconds, default=60.0)
    parser.add_argument("--model")
    parser.add_argument("--limit", type=count)
    parser.add_argument("--compare")
    parser.add_argument("--report", type=writable)
    return run_verb(parser, argv, lambda arguments: _replay(arguments, environ))


def _replay(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from shoal.cli.replay_comparison import differences, tolerance_of

    if not 0 <= arguments.speed < 1e6:
        raise CommandLineError("--speed is a factor from 0 on.")
    _resolve_target(arguments)
    if arguments.exact_batches and arguments.repo is None:
        raise CommandLineError("--exact-batches needs --repo: a server forms its batches itself.")
    tolerance = tolerance_of(arguments.compare)
    recording, number = open_recording(arguments.recording)
    found = read(recording, 0 if arguments.repo else number, arguments.model, arguments.limit)
    is_damaged = complain(recording)
    requests = chosen(found, number, with_batch=arguments.repo is not None)
    if not requests:
        raise CommandLineError(f"The recording has no request {number}.")
    if arguments.repo is not None:
        with models_on_stderr(as_json=arguments.json):
            answers, num_split = _ask_locally(requests, arguments, exact=arguments.exact_batches or number > 0)
    else:
        answers, num_split = _ask_server(requests, arguments, environ), 0
    pairs = list(zip(requests, answers, strict=True))
    unequal = [each for request, answer in pairs for each in differences(request, answer, tolerance)]
    told = _told(pairs, unequal, num_split, is_damaged=is_damaged)
    print(json.dumps(told) if arguments.json else _as_text(told, unequal))
    if arguments.report is not None:
        _write_report(arguments, told, pairs, unequal)
    return EXIT_DIFFERENT if unequal else EXIT_DONE


def _resolve_target(arguments: argparse.Namespace) -> None:
    """If --against names a version or a repository, put it into --version or --repo. Raises CommandLineError if that
    flag is given, too."""
    target = arguments.against or ""
    is_version = target.isascii() and target.isdecimal()
    if not (is_version or (target and is_dir(Path(target)))):
        return
    name = "version" if is_version else "repo"
    if getattr(arguments, name) is not None:
        raise CommandLineError(f"--against {target} and --{name} are two answers to one question: give one of them.")
    setattr(arguments, name, int(target) if is_version else Path(target))
    arguments.against = None


def _write_report(
    arguments: argparse.Namespace,
    told: Mapping[str, Any],
    pairs: "Sequence[tuple[RecordedRequest, Answer]]",
    unequal: "Sequence[Difference]",
) -> None:
    from shoal.cli.replay_report import as_page

    write(arguments.report, as_page(f"Replay of {arguments.recording}", told, pairs, unequal))


def chosen(requests: "Sequence[RecordedRequest]", number: int, *, with_batch: bool) -> "list[RecordedRequest]":
    """The requests to replay: all, or the one with `number`; `with_batch`, also those that were executed with it. Of
    all, a request recorded as being executed when an instance died is left out if it is recorded once more."""
    from shoal.recorder.entry import Outcome

    if number:
        asked = [each for each in requests if each.number == number]
        execution = asked[0].execution if asked else None
        if not with_batch or execution is None:
            return asked
        return [
            each for each in requests if each.execution is not None and each.execution.identity == execution.identity
        ]
    ended = {each.key for each in requests if each.outcome is not Outcome.DIED}
    return [each for each in requests if each.outcome is not Outcome.DIED or each.key not in ended]


def _ask_server(
    requests: "Sequence[RecordedRequest]", arguments: argparse.Namespace, environ: Mapping[str, str]
) -> "list[Answer]":
    from shoal.cli.replay_targets import RunningServer

    with client_at(arguments.against, environ, arguments.timeout) as client:
        return RunningServer(client, arguments.version).replay(requests, arguments.speed)


def _ask_locally(
    requests: "Sequence[RecordedRequest]", arguments: argparse.Namespace, *, exact: bool
) -> "tuple[list[Answer], int]":
    from shoal.cli.replay_targets import LocalModels
    from shoal.recorder.recorded import batches
    from shoal.testing import Server

    models = sorted({each.model for each in requests})
    answers: dict[int, Answer] = {}
    with Server(arguments.repo, models) as server:
        local = LocalModels(server, arguments.version)
        for batch in batches(requests) if exact else [[each] for each in requests]:
            for request, answer in zip(batch, local.replay_batch(batch), strict=True):
                answers[request.number] = answer
    return [answers[each.number] for each in requests], local.num_split if exact else 0


def _told(
    pairs: "Sequence[tuple[RecordedRequest, Answer]]",
    unequal: "Sequence[Difference]",
    num_split: int,
    *,
    is_damaged: bool,
) -> dict[str, Any]:
    from dataclasses import asdict

    from shoal.cli.replay_comparison import quantile_ms

    def latencies(times_ns: list[int]) -> dict[str, float]:
        return {name: round(quantile_ms(times_ns, share), 3) for name, share in (("p50", 0.5), ("p99", 0.99))}

    numbers = {kind: {each.number for each in unequal if each.kind == kind} for kind in ("outcome", "values")}
    return {
        "requests": len(pairs),
        "equal": len(pairs) - len({each.number for each in unequal}),
        "outcome_differs": len(numbers["outcome"]),
        "values_differ": len(numbers["values"]),
        "failed": sum([answer.error is not None for _, answer in pairs]),
        "batches_not_as_recorded": num_split,
        "recorded_ms": latencies([request.total_ns for request, _ in pairs]),
        "replayed_ms": latencies([answer.time_ns for _, answer in pairs]),
        "late_ms": latencies([answer.late_ns for _, answer in pairs]),
        "recording_is_damaged": is_damaged,
        "differences": [asdict(each) for each in unequal],
    }


def _as_text(told: Mapping[str, Any], unequal: "Sequence[Difference]") -> str:
    lines = [
        f"{told['requests']} requests: {told['equal']} as recorded, {told['outcome_differs']} with another outcome, "
        f"{told['values_differ']} with other values",
        f"latency in ms, half and 99 % of the requests within: recorded {told['recorded_ms']['p50']} and "
        f"{told['recorded_ms']['p99']}, replayed {told['replayed_ms']['p50']} and {told['replayed_ms']['p99']}",
    ]
    if told["late_ms"]["p99"] > 1:
        lines.append(f"1 % of the requests were sent {told['late_ms']['p99']} ms late or more")
    if told["batches_not_as_recorded"]:
        lines.append(f"{told['batches_not_as_recorded']} batches could not be formed as recorded")
    lines += [f"  request {each.number}: {printable(each.what)}" for each in unequal[:_NUM_SHOWN]]
    if len(unequal) > _NUM_SHOWN:
        lines.append(f"  and {len(unequal) - _NUM_SHOWN} more; --json has all")
    return "\n".join(lines)
