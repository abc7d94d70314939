"""The verb `rollout`: a new version gets a growing share of a model's requests, and is rolled back where it fails."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence

from shoal.cli.colour import printable, printable_lines
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RemoteServer, Row
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import WHICH_MODEL
from shoal.rollout_settings import DEFAULT_EVERY, DEFAULT_GUARDS, DEFAULT_MIN_REQUESTS, DEFAULT_STEPS

#: Exit code where the rollout was rolled back.
EXIT_ROLLED_BACK = 4
#: Seconds between two questions to the server about the rollout's state (ours).
_LOOK_S = 0.2

_DESCRIPTION = f"""\
Have a running server give a new version of a model a growing share of the requests that name no version. The new
version is promoted after the last step, or rolled back as soon as a guard says so; requests that it fails are executed
by the old one. The command waits for the end and prints each step. Without a version it prints how things stand.

  --steps <percents>     the shares, ascending (default: {DEFAULT_STEPS}); one that ends below 100 holds the last
  --every <time>         how long a step lasts, as 10m, or 500requests (default: {DEFAULT_EVERY})
  --guard <guards>       what the new version must keep to (default: {DEFAULT_GUARDS}), or none:
                         p99=+10%, p99=+5ms, p99<50ms (or p50, p90, p95), errors=+0.1%, errors<1%, disagree<0.5%
  --min-requests <n>     the fewest requests of the old version in a step to compare with, and of the new one before
                         the step is over (default: {DEFAULT_MIN_REQUESTS})
  --sticky-header <name> requests with one value of this header go to one version
  --no-retry             the client gets the errors of the new version; for models whose executions change something
                         elsewhere
  --detach               return at once: the server goes on by itself in any case

  --abort, --promote     end the rollout now
  --pause, --resume      stay at the present step, and go on
  --unpin                let requests that name no version mean the highest one again, as without any rollout

Exit code 4: it was rolled back; the last line says why."""

_EXAMPLES = """\
  shoal rollout digits 3 --steps 1,10,50,100 --every 10m --guard p99=+10%,errors=+0.1%
  shoal rollout digits 3 --steps 10 --detach   # a canary that stays at 10 %, until --promote or --abort
  shoal rollout digits                         # how it stands
  shoal rollout digits --abort
"""
_ACTIONS = ("abort", "promote", "pause", "resume", "unpin")


class _RolledBackError(Exception):
    """The rollout that the command has waited for was rolled back; the error's argument is a sentence that says why."""


def rollout(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Begin, change or show a rollout; returns the exit code."""
    parser = OperatingParser("rollout", "<model> [<version>] [options]", _DESCRIPTION, _EXAMPLES, timeout_s=60)
    parser.add_asked("model", WHICH_MODEL)
    parser.add_argument("version", nargs="?", type=int)
    for name in ("--steps", "--every", "--guard", "--sticky-header"):
        parser.add_argument(name)
    parser.add_argument("--min-requests", type=int)
    for name in ("--no-retry", "--detach", *[f"--{each}" for each in _ACTIONS]):
        parser.add_argument(name, action="store_true")
    try:
        return operate(parser, argv, environ, _rollout)
    except _RolledBackError as error:
        print(error, file=sys.stderr)
        return EXIT_ROLLED_BACK


def _rollout(arguments: argparse.Namespace, server: RemoteServer) -> str:
    actions = [each for each in _ACTIONS if getattr(arguments, each)]
    plan = _plan(arguments)
    if len(actions) + (arguments.version is not None) > 1:
        raise CommandLineError("One thing at a time: a version begins a rollout, each of these options changes one.")
    if arguments.version is None and (plan or arguments.detach):
        raise CommandLineError("Which version? As in: shoal rollout digits 3 --steps 1,10,50,100")
    if actions:
        told = server.rollout(arguments.model, {"action": actions[0]})
    elif arguments.version is None:
        told = server.rollout(arguments.model)
    else:
        told = server.rollout(arguments.model, {"version": arguments.version, **plan})
        if not arguments.detach:
            told = _wait(arguments, server, told)
    return json.dumps(told) if arguments.json else _text(told)


def _plan(arguments: argparse.Namespace) -> Row:
    names = ("steps", "every", "guard", "min_requests", "sticky_header")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return {**given, "retry": False} if arguments.no_retry else given


def _wait(arguments: argparse.Namespace, server: RemoteServer, told: Row) -> Row:
    """Print each step of the rollout until the rollout has ended; returns its last state. Raises _RolledBackError."""
    shown = None
    while told["phase"] in ("running", "paused"):
        step = told["step"], told["phase"]
        if step != shown and not arguments.json:
            print(_line(told), flush=True)
        shown = step
        time.sleep(_LOOK_S)
        told = server.rollout(arguments.model)
    if told["phase"] == "rolled back":
        if arguments.json:
            print(json.dumps(told))
        raise _RolledBackError(_line(told))
    return told


def _line(told: Row) -> str:
    version, stable, share = told["version"], told["stable"], told["weights"].get(str(told["version"]), 0)
    if told["phase"] == "promoted":
        return f"version {version} is promoted"
    if told["phase"] == "rolled back":
        return f"rolled back to version {stable}: {printable(str(told['reason']))}"
    step = f"step {told['step']} of {len(told['steps'].split(','))}"
    return f"{told['phase']}: version {version} gets {share:g} %, version {stable} the rest ({step})"


def _text(told: Row) -> str:
    lines = [_line(told)] if "phase" in told else []
    for number, each in told.get("figures", {}).items():
        lines.append(
            f"  version {number}: {each['requests']} requests, {each['errors']} errors, p50 {each['p50_ms']:g} ms, "
            f"p99 {each['p99_ms']:g} ms in this step"
        )
    weights = ", ".join([f"version {number}: {share:g} %" for number, share in told["weights"].items()])
    pinned = "" if told["pinned"] else " (the highest: no rollout has chosen another)"
    return printable_lines("\n".join([*lines, f"requests that name no version: {weights}{pinned}"]))
