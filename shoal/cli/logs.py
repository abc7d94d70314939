"""The verb `logs`: the last lines of a running server's log file, and those that are written from then on."""

import argparse
import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RefusedError, RemoteServer
from shoal.cli.request_arguments import count
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE

_DESCRIPTION = """\
Print the last lines of the file that a server logs to (--log-file), and with --follow those that come, until Ctrl-C.
The file of a server of this machine is read; a server elsewhere, or in a container, is asked, as an administrator, for
at most 1000 lines. One without a file logs to its terminal, or under systemd to the journal: journalctl -u shoal."""

_EXAMPLES = """\
  shoal logs
  shoal logs --lines 1000 | grep ^E          # errors
  shoal logs --follow
  shoal logs --url https://gpu-1:8000 --header "X-API-Key: $KEY"

Options of this verb:
  --lines <count>        how many of the last lines (default: 20)
  --follow, -f           go on with what is written from now on; with --json a line {"log_file", "lines": […]} for each
"""
#: Seconds between two looks at the file (ours).
_INTERVAL_S = 0.2
#: Seconds between two questions to a server on another machine (ours); the most lines of an answer.
_ASK_S, _MOST_LINES = 1.0, 1000
_HERE = ("localhost", "127.0.0.1", "::1")


def logs(argv: Sequence[str], *, environ: Mapping[str, str], sleep: Callable[[float], None] = time.sleep) -> int:
    """Print the last lines of a server's log, with --follow also those written from then on; returns the exit code."""
    parser = OperatingParser("logs", "[options]", _DESCRIPTION, _EXAMPLES, timeout_s=10)
    parser.add_argument("--lines", type=count, default=20)
    parser.add_argument("--follow", "-f", action="store_true")

    def show(arguments: argparse.Namespace, server: RemoteServer) -> str:
        if urlsplit(server.url).hostname not in _HERE:
            return _from_elsewhere(arguments, server, sleep)
        path = _file_of(server)
        try:
            if not path.is_file():  # a terminal or a device, to which a server may log, is not read
                raise OSError(errno.ENOENT, "there is no such file")
            with path.open("rb") as file:
                last = [_text(line) for line in deque(file, maxlen=arguments.lines)]
                if not arguments.follow:
                    return _shown(str(path), last, as_json=arguments.json)
                if last:
                    print(_shown(str(path), last, as_json=arguments.json), flush=True)
                for data in coming(file, sleep):
                    print(_shown(str(path), [_text(data)], as_json=arguments.json), flush=True)
        except OSError as error:  # the file is another user's, or is in the server's container
            try:
                return _from_elsewhere(arguments, server, sleep)
            except RefusedError:
                text = f"The server logs to {path}, which cannot be read here: {error.strerror}"
                raise CommandLineError(text) from None
        raise AssertionError("a file that is followed has no end")

    try:
        return operate(parser, argv, environ, show)
    except KeyboardInterrupt:
        return EXIT_DONE


def _from_elsewhere(arguments: argparse.Namespace, server: RemoteServer, sleep: Callable[[float], None]) -> str:
    """The last lines of a server that is not on this machine. With --follow they are printed as they come, for ever."""
    told = server.log_lines(min(arguments.lines, _MOST_LINES), 0)
    if not told["log_file"]:
        raise RefusedError(200, f"{server.url}: {told['note']}.")
    if not arguments.follow:
        return _shown(told["log_file"], told["lines"], as_json=arguments.json)
    while True:
        if told["lines"]:
            print(_shown(told["log_file"], told["lines"], as_json=arguments.json), flush=True)
        sleep(_ASK_S)
        told = server.log_lines(_MOST_LINES, told["position"])


def _shown(file: str, lines: Sequence[str], *, as_json: bool) -> str:
    return json.dumps({"log_file": file, "lines": lines}) if as_json else "\n".join(lines)


def coming(file: BinaryIO, sleep: Callable[[float], None]) -> Iterator[bytes]:
    """The lines that are written to a file after its position; a file that was cut short is read from its beginning."""
    rest = b""
    while True:
        if os.fstat(file.fileno()).st_size < file.tell():  # was cut short, as by logrotate's copytruncate
            file.seek(0)
        line = rest + file.readline()
        if line.endswith(b"\n"):
            rest = b""
            yield line
        else:
            rest = line
            sleep(_INTERVAL_S)


def _file_of(server: RemoteServer) -> Path:
    """The server's log file. Raises RefusedError if it has none."""
    path = server.log_settings().get("log_file")
    if not path:
        raise RefusedError(
            200,
            f"The server at {server.url} writes no log file: start it with --log-file=<path>. Under systemd, "
            "journalctl -u shoal has its log.",
        )
    return Path(str(path))


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")
