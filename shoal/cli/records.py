"""The verb `records`: the contents of a recording, and its requests in other forms. Reads files; asks no server."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.colour import printable
from shoal.cli.models import table
from shoal.cli.request_arguments import count, writable, write
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb
from shoal.file_kinds import exists

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.bf16 import Array
    from shoal.recorder.recorded import RecordedRequest, RecordedTensor, Recording

#: The error of a verb that is given no recording.
WHICH_RECORDING = "Which recording? Name a file, or the folder of --record."
#: Exit code for a recording that could be read only up to some damage.
EXIT_DAMAGED = 2

_HELP = """\
List the requests of a recording, show one of them, or write them in another form. A recording is a file, or the folder
of --record with all its files. A file that is damaged, or was being written, is read up to the damage.

Examples:
  shoal records recordings                        # a line for each request
  shoal records recordings#17                     # everything about the 17th: inputs, answer, times, its batch
  shoal records recordings --model digits --failed
  shoal records recordings#17 --export npz --output request.npz
  shoal records recordings --export json          # one request a line
  shoal records recordings --model digits --export perf-analyzer --output load.json

Options:
  --model <name>        only requests to this model
  --failed              only those that failed, were refused, or whose instance died
  --limit <number>      only so many, the first
  --export <form>       npz: arrays, for one request or several; json: one request a line; perf-analyzer: the file of
                        its --input-data; parquet: a table, with pyarrow installed
  --output <file>       where to (npz and parquet need it; others go to stdout)
  --json                list as JSON, one request a line, without tensors' values
  --help                print this and exit

Exit codes: 0 done; 1 the command is wrong; 2 part of the recording cannot be read.
"""


def records(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """List, show or export a recording; returns the exit code."""
    parser = VerbParser("records", "<file or folder>[#<number>] [options]", _HELP)
    parser.add_asked("recording", WHICH_RECORDING)
    parser.add_argument("--model")
    parser.add_argument("--failed", action="store_true")
    parser.add_argument("--limit", type=count)
    parser.add_argument("--export", choices=("npz", "json", "perf-analyzer", "parquet"))
    parser.add_argument("--output", type=writable)
    return run_verb(parser, argv, _records)


def open_recording(text: str) -> "tuple[Recording, int]":
    """A recording, and the number of a request that `text` has behind a `#`; 0 without one. Raises CommandLineError."""
    from shoal.recorder.folder import SUFFIX, files_of
    from shoal.recorder.recorded import Recording

    if not text:
        raise CommandLineError(WHICH_RECORDING)
    path, number = Path(text), 0
    if not exists(path):
        name, mark, digits = text.rpartition("#")
        if mark and digits.isascii() and digits.isdecimal():
            path, number = Path(name), int(digits)
    if not exists(path):
        raise CommandLineError(f"There is no recording '{path}'.")
    if not files_of(path):
        raise CommandLineError(f"There is no recording in '{path}': its files end in {SUFFIX}.")
    return Recording(path), number


def read(
    recording: "Recording", number: int = 0, model: str | None = None, limit: int | None = None, *, failed: bool = False
) -> "list[RecordedRequest]":
    """The chosen requests of a recording. Raises CommandLineError if there is none."""
    from itertools import islice

    from shoal.recorder.entry import Outcome

    def chosen() -> "Iterator[RecordedRequest]":
        for each in recording:
            if number and each.number > number:
                return
            if (number and each.number != number) or (model and each.model != model):
                continue
            if not failed or each.outcome is not Outcome.OK:
                yield each

    try:
        found = list(islice(chosen(), limit))
    except OSError as error:
        raise CommandLineError(f"The recording cannot be read: {error}") from None
    if not found:
        complain(recording)
        what = f"request {number}" if number else "such request"
        raise CommandLineError(f"The recording has no {what}.")
    return found


def complain(recording: "Recording") -> bool:
    """Print on stderr where a recording is damaged; returns whether it is."""
    for path, damage in recording.damage.items():
        print(f"{path}: {damage.why}; it was read up to byte {damage.offset}", file=sys.stderr)
    return bool(recording.damage)


def _records(arguments: argparse.Namespace) -> int:
    recording, number = open_recording(arguments.recording)
    found = read(recording, number, arguments.model, arguments.limit, failed=arguments.failed)
    if arguments.export:
        _export(found, arguments)
    elif arguments.json:
        for each in found:
            print(json.dumps(described(each)))
    elif number:
        print(_shown(found[0]))
    else:
        print(_listed(found))
    return EXIT_DAMAGED if complain(recording) else EXIT_DONE


# --- list and show ---


def described(request: "RecordedRequest", *, with_values: bool = False) -> dict[str, Any]:
    """A request in the form of JSON, for programs; times in ns."""
    points = request.points
    return {
        "number": request.number,
        "arrival": _date(request.arrival_ns),
        "model": request.model,
        "version": request.version,
        "id": request.id,
        "asker": request.asker,
        "outcome": request.outcome.name.lower(),
        "error": None if request.error is None else str(request.error),
        "rows": request.rows,
        "total_ns": request.total_ns,
        "queue_ns": max(0, points.compute_start_ns - points.queue_ns) if points.compute_start_ns else None,
        "compute_ns": max(0, points.compute_end_ns - points.compute_start_ns) if points.compute_start_ns else None,
        "batch": None if request.execution is None else request.execution._asdict(),
        "priority": request.priority,
        "timeout_us": request.timeout_us,
        "parameters": request.parameters,
        "headers": dict(request.headers),
        "sequence": list(request.sequence) if request.sequence != (0, 0) else None,
        "inputs": [_tensor(each, with_values=with_values) for each in request.inputs],
        "requested_outputs": list(request.requested_outputs),
        "responses": [
            {
                "parameters": each.parameters,
                "outputs": [_tensor(output, with_values=with_values) for output in each.outputs],
            }
            for each in request.responses
        ],
    }


def _tensor(tensor: "RecordedTensor", *, with_values: bool) -> dict[str, Any]:
    form = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    return {**form, "data": _values(tensor)} if with_values else form


def _array(tensor: "RecordedTensor") -> "Array":
    """The values of a tensor, those of BF16 as float32. Raises ValueError where shape and data do not agree."""
    from shoal import bf16

    return bf16.values_of(tensor.array()) if tensor.datatype == "BF16" else tensor.array()


def _values(tensor: "RecordedTensor") -> list[Any]:
    try:
        values = _array(tensor).ravel().tolist()
    except ValueError:  # a model's output whose shape and bytes do not agree, or a file that was made by hand
        return []
    return [each.decode(errors="replace") for each in values] if tensor.datatype == "BYTES" else values


def _date(wall_ns: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ns / 1e9, timezone.utc).isoformat(timespec="microseconds")
    except (OverflowError, ValueError, OSError):  # the time in a file that was made by hand
        return "?"


def _listed(requests: "Sequence[RecordedRequest]") -> str:
    rows = []
    for each in requests:
        batch = (
            ""
            if each.execution is None
            else f"{each.execution.batch}[{each.execution.position}/{each.execution.num_requests}]"
        )
        said = each.id if each.error is None else str(each.error)
        rows.append(
            (
                str(each.number), _date(each.arrival_ns)[:23], f"{printable(each.model)}/{each.version}",
                each.outcome.name.lower(), str(each.rows), batch, f"{each.total_ns / 1e6:.3f}", printable(said)[:60],
            )
        )  # fmt: skip
    return table(["number", "arrival", "model", "outcome", "rows", "batch", "ms", "id or error"], rows)


def _shown(request: "RecordedRequest") -> str:
    import numpy as np

    execution, points = request.execution, request.points
    why = "" if request.error is None else f": {printable(str(request.error))}"
    lines = [
        f"request {request.number} to {printable(request.model)} version {request.version}, from a {request.asker}",
        f"  arrived     {_date(request.arrival_ns)}",
        f"  outcome     {request.outcome.name.lower()}{why}",
        f"  took        {request.total_ns / 1e6:.3f} ms",
    ]
    if points.compute_start_ns:
        lines.append(
            f"  of it       {max(0, points.compute_start_ns - points.queue_ns) / 1e6:.3f} ms in the queue, "
            f"{max(0, points.compute_end_ns - points.compute_start_ns) / 1e6:.3f} ms executed"
        )
    if execution is not None:
        lines.append(
            f"  executed    by {printable(execution.instance)} (pid {execution.pid}), in its batch {execution.batch}, "
            f"as {execution.position + 1} of {execution.num_requests} requests, {execution.rows} rows"
        )
    if request.id:
        lines.append(f"  id          {printable(request.id)}")
    lines += [f"  parameter   {printable(name)} = {value!r}" for name, value in request.parameters.items()]
    lines += [f"  header      {printable(name)}: {printable(value)}" for name, value in request.headers.items()]
    if request.sequence != (0, 0):
        lines.append(f"  sequence    {request.sequence[0]!r}, flags {request.sequence[1]}")
    tensors = [("input", each) for each in request.inputs]
    tensors += [("output", each) for response in request.responses for each in response.outputs]
    with np.printoptions(precision=6, suppress=True, threshold=64, linewidth=110):
        for kind, each in tensors:
            lines.append(f"  {kind:<11} {printable(each.name)}  {each.datatype} {list(each.shape)}")
            lines += [f"    {line}" for line in _printed(each).splitlines()]
    return "\n".join(lines)


def _printed(tensor: "RecordedTensor") -> str:
    try:
        return str(_array(tensor))
    except ValueError as error:
        return f"cannot be read: {error}"


# --- export ---


def _export(requests: "Sequence[RecordedRequest]", arguments: argparse.Namespace) -> None:
    form, output = arguments.export, arguments.output
    if form in ("npz", "parquet"):
        if output is None:
            raise CommandLineError(f"--export {form} needs --output <file>")
        (_write_npz if form == "npz" else _write_parquet)(requests, output)
        return
    text = _as_lines(requests) if form == "json" else _as_perf_analyzer(requests)
    if output is None:
        print(text, end="")
    else:
        write(output, text)


def _write_npz(requests: "Sequence[RecordedRequest]", path: Path) -> None:
    """Arrays under `17/input/NAME` and `17/output/NAME`; the arrays of a single request have no number. BYTES become
    byte strings of one length, since numpy would pickle others."""
    import numpy as np

    arrays = {}
    for request in requests:
        start = f"{request.number}/" if len(requests) > 1 else ""
        named = [(f"{start}input/{each.name}", each) for each in request.inputs]
        for number, response in enumerate(request.responses):
            part = f"output/{number}" if len(request.responses) > 1 else "output"
            named += [(f"{start}{part}/{each.name}", each) for each in response.outputs]
        for name, each in named:
            try:
                array = each.array()
            except ValueError as error:
                raise CommandLineError(f"Request {request.number}: {name} cannot be read: {error}") from None
            arrays[name] = array.astype(bytes) if each.datatype == "BYTES" else array
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # names of arrays, none of which is allow_pickle


def _as_lines(requests: "Sequence[RecordedRequest]") -> str:
    return "".join([json.dumps(described(each, with_values=True)) + "\n" for each in requests])


def _as_perf_analyzer(requests: "Sequence[RecordedRequest]") -> str:
    """The text of a file for perf_analyzer's --input-data: each input's `content`, and its `shape`, without the first
    dimension if that is the number of the request's rows. Raises CommandLineError for requests to several models."""
    if len({each.model for each in requests}) > 1:
        raise CommandLineError("A file for perf_analyzer is of one model: name it with --model.")
    data = [
        {
            tensor.name: {"content": _values(tensor), "shape": list(_without_batch(tensor.shape, request.rows))}
            for tensor in request.inputs
        }
        for request in requests
    ]
    return json.dumps({"data": data}) + "\n"


def _without_batch(shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    return shape[1:] if len(shape) > 1 and shape[0] == rows == 1 else shape


def _write_parquet(requests: "Sequence[RecordedRequest]", path: Path) -> None:
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CommandLineError("--export parquet needs pyarrow: pip install 'shoal[parquet]'") from None

    def with_data(tensors: "Sequence[RecordedTensor]") -> list[dict[str, Any]]:
        return [{**_tensor(each, with_values=False), "data": each.data} for each in tensors]

    rows = [
        {
            **described(each),
            "inputs": with_data(each.inputs),
            "responses": [with_data(response.outputs) for response in each.responses],
        }
        for each in requests
    ]
    for row in rows:
        row |= {name: json.dumps(row[name]) for name in ("parameters", "headers", "sequence")}
    parquet.write_table(pa.Table.from_pylist(rows), path)
