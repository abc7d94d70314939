"""The common parts of the verbs that operate a running server: flags, and their help."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import client_tls
from shoal.cli.remote import DEFAULT_URL, RemoteServer
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb
from shoal.errors import InvalidArgumentError

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal import Client

_ENDING = """
Every verb that asks a running server takes:
  --url <url>            the server (default: $SHOAL_URL, or {url})
  --header <name: value> a header to send, for a server with --http-restricted-api; repeat it for several
{tls}  --timeout <seconds>    how long to wait for an answer (default: {timeout})
  --json                 print JSON, for programs; an error as {{"error": "…"}}
  --help                 print this and exit

Exit codes: 0 done; 1 the command is wrong; 2 the server refused; 3 no answer.
"""


class OperatingParser(VerbParser):
    """The arguments of a verb that operates a server. `examples` are lines of shell, with comments."""

    def __init__(self, verb: str, usage: str, description: str, examples: str, *, timeout_s: int) -> None:
        ending = _ENDING.format(url=DEFAULT_URL, timeout=timeout_s, tls=client_tls.HELP.lstrip("\n"))
        super().__init__(verb, usage, f"{description}\n\nExamples:\n{examples}{ending}")
        self.add_argument("--url")
        self.add_argument("--header", action="append", default=[], type=_header)
        client_tls.add_arguments(self)
        self.add_argument("--timeout", type=seconds, default=float(timeout_s))


def operate(
    parser: OperatingParser,
    argv: Sequence[str],
    environ: Mapping[str, str],
    work: Callable[[argparse.Namespace, RemoteServer], str],
) -> int:
    """Parse the arguments, call `work` with the server, and print what `work` returns; returns the exit code."""

    def ask(arguments: argparse.Namespace) -> int:
        with closing(_server(arguments, environ)) as server:
            print(work(arguments, server))
        return EXIT_DONE

    return run_verb(parser, argv, ask)


def client_at(given: str | None, environ: Mapping[str, str], timeout_s: float | None = None) -> "Client":
    """A client of the server that `given` names, else $SHOAL_URL, else of this user's server. host:port means
    http://host:port, as for RemoteServer; a path is a socket's. `timeout_s` bounds each request over the network, and
    the start of a connection through shared memory. Raises CommandLineError for any other text."""
    from shoal import Client

    place = given or environ.get("SHOAL_URL") or None
    if place is not None and "://" not in place and "/" not in place and not Path(place).exists():
        place = f"http://{place}"
    try:
        client = Client(place)
    except InvalidArgumentError as error:
        raise CommandLineError(str(error)) from None
    client.timeout_s = timeout_s
    return client


def _server(arguments: argparse.Namespace, environ: Mapping[str, str]) -> RemoteServer:
    url = arguments.url or environ.get("SHOAL_URL") or DEFAULT_URL
    try:
        tls = client_tls.context_of(arguments)
        return RemoteServer(url, timeout_s=arguments.timeout, headers=dict(arguments.header), tls=tls)
    except ValueError as error:
        raise CommandLineError(str(error)) from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable() or not text.isascii():
        raise argparse.ArgumentTypeError(f"expected '<name>: <value>', got '{text}'")
    return name.strip(), value.strip()


def seconds(text: str) -> float:
    """A time of up to a day. Raises ArgumentTypeError for any other text."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"expected seconds, up to a day, got '{text}'")
    return value
