"""The verb `models`: a table of a running server's models, which other verbs also show at their end."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence

from shoal.cli import cells
from shoal.cli.colour import BAD, GOOD, NOTE, coloured, printable
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RefusedError, RemoteServer, Row
from shoal.cli.verb import model_name
from shoal.placement import format_cores

_EXAMPLES = """\
  shoal models                     # every model: its versions, their states, how many instances are up
  shoal models digits              # the instances of one model: process, device, cores, how busy
  shoal models --json | jq -r '.[] | select(.state != "READY") | .name'
  shoal models --url http://gpu-1:8000
"""

#: In a narrow terminal, columns are left out until names have this many cells (ours).
LEAST_NAME = 16
_MIB = 1024 * 1024


#: The colours of states. The state is the word behind a version's number, or behind `-` where no version is known: a
#: model's name may be one of these words, too.
_COLOURS = {
    r"^.+?  (?:[0-9]+|-) +(READY)\b": GOOD,
    r"^.+?  (?:[0-9]+|-) +(UNAVAILABLE)\b": BAD,
    r"^.+?  (?:[0-9]+|-) +(LOADING|UNLOADING)\b": NOTE,
}


def models(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """List models, or the instances of one; returns the exit code."""
    description = "List the models of a running server, or the instances of one model."
    parser = OperatingParser("models", "[<model>] [options]", description, _EXAMPLES, timeout_s=10)
    parser.add_argument("model", nargs="?", type=model_name)
    return operate(parser, argv, environ, _models)


def _models(arguments: argparse.Namespace, server: RemoteServer) -> str:
    if arguments.model is None:
        return show_models(server, server.index(), as_json=arguments.json)
    return show_instances(server.instances(arguments.model), as_json=arguments.json)


def show_models(server: RemoteServer, rows: Iterable[Row], *, as_json: bool) -> str:
    """A table of the repository index's rows, with how many instances of each version are up."""
    known = _with_instances(server, list(rows))
    if as_json:
        return json.dumps(known, indent=2)
    if not known:
        return "The server has no models."
    cells = [
        [*(str(row.get(key) or "-") for key in ("name", "version", "state")), _share(row), _line(row.get("reason"))]
        for row in known
    ]
    return coloured(table(["NAME", "VERSION", "STATE", "INSTANCES", "REASON"], cells), _COLOURS)


def show_instances(model: Row, *, as_json: bool) -> str:
    """A text about a model's instances: a line about each version, then a line for each instance."""
    if as_json:
        return json.dumps(model, indent=2)
    lines = []
    for version in model["versions"]:
        automatic = "scaled automatically " if version["autoscale"] else ""
        instances = counted(len(version["instances"]), "instance")
        lines.append(
            f"{model['model']}, version {version['version']}: {version['state']}, {instances}, "
            f"{automatic}between {version['min_instances']} and {version['max_instances']}{_memory(version)}"
        )
    head = ["INSTANCE", "VERSION", "STATE", "PID", "DEVICE", "CORES", "BUSY", "BATCHES", "RESTARTS", "RSS"]
    cells = [_instance(each, version) for version in model["versions"] for each in version["instances"]]
    return "\n".join([*map(printable, lines), *([table(head, cells)] if cells else [])])


def _with_instances(server: RemoteServer, rows: list[Row]) -> list[Row]:
    """The rows with `instances_up` and `instances`, as in /v2/health/reasons, where the server reports these."""
    counts: dict[tuple[str, str], Row] = {}
    for name in dict.fromkeys(row["name"] for row in rows if "version" in row):
        try:
            versions = server.instances(name)["versions"]
        except RefusedError:
            continue  # a server without that endpoint, such as Triton, or the model was removed meanwhile
        for each in versions:
            up = sum(instance["state"] == "up" for instance in each["instances"])
            counts[name, each["version"]] = {"instances_up": up, "instances": len(each["instances"])}
    return [{**row, **counts.get((row["name"], row.get("version", "")), {})} for row in rows]


def _memory(version: Row) -> str:
    """Text on the memory that a version's processes take: of the host, and of each GPU as far as that is known."""
    parts = [f"{version['memory_bytes'] // _MIB} MiB of memory"] if version.get("memory_bytes") else []
    parts += [f"{nbytes // _MIB} MiB on {gpu}" for gpu, nbytes in version.get("gpu_memory_bytes", {}).items()]
    return "".join(f", {part}" for part in parts)


def _share(row: Row) -> str:
    return f"{row['instances_up']}/{row['instances']}" if "instances" in row else "-"


def _line(reason: str | None) -> str:
    """A reason of several lines, such as a traceback, on one line of the table."""
    return " ".join((reason or "").split())


def counted(number: int, noun: str) -> str:
    """A number of things, whose plural ends in s."""
    return f"{number} {noun}" + "s" * (number != 1)


def _instance(instance: Row, version: Row) -> list[str]:
    """The cells of an instance's line; an instance that is not up has neither a process nor the process's figures."""
    share, rss = instance.get("busy_share"), instance.get("rss_bytes")
    return [
        instance["name"],
        version["version"],
        instance["state"],
        str(instance.get("pid") or "-"),
        instance["device"],
        format_cores(instance["cores"]) or "-",
        "-" if share is None else f"{share:.0%}",
        str(instance["batches"]),
        str(instance["restarts"]),
        f"{rss // _MIB} MiB" if rss else "-",
    ]


def cut(name: str, width: int) -> str:
    """A name of at most `width` cells: of a longer one the middle is left out, since ends tell models apart, too."""
    if cells.width(name) <= width:
        return name
    return f"{cells.clipped(name, width // 2)}…{cells.clipped_left(name, (width - 1) // 2)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: columns as wide as needed, two spaces between them, none at the end of a line. Characters
    that a terminal would obey are escaped."""
    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(cells.width(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cells.padded(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip
