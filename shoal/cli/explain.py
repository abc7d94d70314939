"""The verb `explain`: why a model's last batches had their size, and how long batches of each size take."""

import argparse
import json
from collections.abc import Mapping, Sequence

from shoal.cli.colour import printable, printable_lines
from shoal.cli.models import table
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RemoteServer, Row
from shoal.cli.verb import WHICH_MODEL

_DESCRIPTION = """\
Say why the last batches of a model had their size, how often each reason was given, and how long batches of each size
take."""

_EXAMPLES = """\
  shoal explain digits
  shoal explain digits --json | jq '.versions[0].last_batches'
"""

_HOW = {
    "default": "without dynamic_batching each request is executed alone",
    "dynamic": "batched by size and delay, as dynamic_batching says",
    "ensemble": "an ensemble; its models batch, it does not",
    "other": "its scheduler keeps no account of its batches",
}


def explain(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Explain a model's batches; returns the exit code."""
    parser = OperatingParser("explain", "<model> [options]", _DESCRIPTION, _EXAMPLES, timeout_s=10)
    parser.add_asked("model", WHICH_MODEL)
    return operate(parser, argv, environ, _explain)


def _explain(arguments: argparse.Namespace, server: RemoteServer) -> str:
    told = server.explanation(arguments.model)
    if arguments.json:
        return json.dumps(told, indent=2)
    if not told["versions"]:
        return printable(f"No version of {told['model']} is served.")
    return printable_lines("\n\n".join(_version(told["model"], version) for version in told["versions"]))


def _version(model: str, version: Row) -> str:
    parts = [f"{model}, version {version['version']}: {_how(version)}"]
    reasons, last, sizes = version["reasons"], version["last_batches"], _sizes(version)
    if reasons:
        total = sum(each["batches"] for each in reasons)
        rows = [[f"{each['batches'] / total:.0%}", str(each["batches"]), each["meaning"]] for each in reasons]
        parts.append(table(["SHARE", "BATCHES", "WHY IT HAD ITS SIZE"], rows))
    if last:
        parts.append(f"rows of the last {len(last)}, oldest first: " + " ".join(str(each["rows"]) for each in last))
    if sizes:
        parts.append(table(["ROWS", "BATCHES", "MEASURED", "PER ROW", "EXPECTED"], sizes))
    return "\n".join(parts)


def _how(version: Row) -> str:
    if version["scheduler"] == "goal":
        return (
            f"batched so that answers take at most {version['latency_target_ms']} ms; "
            f"{version['arrivals_per_s']:g} rows arrive per second"
        )
    if version["scheduler"] == "lengths":
        return f"{_BY_LENGTH[version['strategy']]}; {_padding(version)}"
    return _HOW[version["scheduler"]]


def _padding(version: Row) -> str:
    """A sentence on the share of padding, and on the cost of another execution, which padding must not exceed."""
    fixed = version["fixed_elements"]
    known = "not known yet" if fixed is None else "any number of elements" if fixed < 0 else f"{fixed:,.0f} elements"
    return (
        f"{version['padding_share']:.1%} of what was executed was padding; another execution costs as much as: {known}"
    )


_BY_LENGTH = {
    "pad": "batched by length, padded where that costs less than another execution",
    "bucket": "batched by length, each bucket by itself",
    "pack": "batched by elements, not padded",
}


def _sizes(version: Row) -> list[list[str]]:
    """One row per executed batch size. The time expected, under a latency target only, is the last cell, and includes
    the way to the instance and back."""
    expected = {each["rows"]: each["ns"] for each in version.get("learned", ())}
    return [
        [
            str(each["rows"]),
            str(each["batches"]),
            _ms(each["ns"]),
            _ms(each["ns"] / each["rows"]),
            _ms(expected[each["rows"]]) if each["rows"] in expected else "-",
        ]
        for each in sorted(version["measured"], key=lambda each: each["rows"])
    ]


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"
