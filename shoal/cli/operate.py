"""The common parts of the verbs that operate a running server: flags, exit codes, and advice where a verb fails."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from shoal.cli.remote import NoResponseError, RefusedError, RemoteServer, UnreachableError
from shoal.cli.serve import CommandLineError, Parser

DEFAULT_URL = "http://127.0.0.1:8000"

EXIT_DONE, EXIT_MISUSED, EXIT_REFUSED, EXIT_NO_ANSWER = 0, 1, 2, 3

#: A part of the server's sentence → advice.
_REMEDIES = {
    "explicit model load / unload is not allowed": "Models are loaded and unloaded by command only where the server "
    "was started with --model-control-mode=explicit.",
    "This API is restricted": "Send that header: --header '<name>: <value>'.",
    "failed to poll from model repository": "'shoal models' lists what the server found in its repositories.",
    "Not Found": "That server does not know this request: it may be Triton, or an older Shoal.",
}

_ENDING = """
Every verb that asks a running server takes:
  --url <url>            the server (default: $SHOAL_URL, or {url})
  --header <name: value> a header to send, for a server with --http-restricted-api; repeat it for several
  --timeout <seconds>    how long to wait for an answer (default: {timeout})
  --json                 print JSON, for programs
  --help                 print this and exit

Exit codes: 0 done; 1 the command is wrong; 2 the server refused; 3 no answer.
"""


class OperatingParser(Parser):
    """The arguments of one verb. `usage` follows the verb; `examples` are lines of shell, with comments."""

    def __init__(self, verb: str, usage: str, description: str, examples: str, *, timeout_s: int) -> None:
        super().__init__(
            prog=f"shoal {verb}",
            usage=f"shoal {verb} {usage}",
            description=f"{description}\n\nExamples:\n{examples}",
            epilog=_ENDING.format(url=DEFAULT_URL, timeout=timeout_s),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
        )
        self.add_argument("--url", help=argparse.SUPPRESS)
        self.add_argument("--header", action="append", default=[], type=_header, help=argparse.SUPPRESS)
        self.add_argument("--timeout", type=seconds, default=float(timeout_s), help=argparse.SUPPRESS)
        self.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
        self.add_argument("--help", "-h", action="help", help=argparse.SUPPRESS)


def operate(
    parser: OperatingParser,
    argv: Sequence[str],
    environ: Mapping[str, str],
    work: Callable[[argparse.Namespace, RemoteServer], str],
) -> int:
    """Parse the arguments, call `work` with the server, and print what `work` returns; returns the exit code."""
    try:
        arguments = parser.parse_args(list(argv))
        with closing(_server(arguments, environ)) as server:
            print(work(arguments, server))
    except CommandLineError as error:
        return _complain(EXIT_MISUSED, f"{error}\nUsage: {parser.usage}", f"'{parser.prog} --help' explains it.")
    except RefusedError as error:
        return _complain(EXIT_REFUSED, str(error), *(_REMEDIES[piece] for piece in _REMEDIES if piece in str(error)))
    except UnreachableError as error:
        return _complain(
            EXIT_NO_ANSWER,
            str(error),
            "It accepts connections once its models have loaded. To start one, or to ask another:",
            "  shoal serve --model-repository <directory>",
            f"  {parser.prog} --url http://<host>:<port>    or export SHOAL_URL=http://<host>:<port>",
        )
    except NoResponseError as error:
        return _complain(EXIT_NO_ANSWER, str(error))
    return EXIT_DONE


def _server(arguments: argparse.Namespace, environ: Mapping[str, str]) -> RemoteServer:
    url = arguments.url or environ.get("SHOAL_URL") or DEFAULT_URL
    try:
        return RemoteServer(url, timeout_s=arguments.timeout, headers=dict(arguments.header))
    except ValueError as error:
        raise CommandLineError(str(error)) from None


def _complain(code: int, *lines: str) -> int:
    print(*lines, sep="\n", file=sys.stderr)
    return code


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
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
