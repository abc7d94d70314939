"""The verb `fleet`: several servers behind one address, without a cluster. Writes a configuration of HAProxy.

HAProxy balances each HTTP request and each gRPC call by itself, to the server with the fewest open ones; asks each
server whether it is ready; and sends a request again only where the server has not accepted its connection, so that no
request is executed twice.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb, show

_HELP = """\
Print a configuration of HAProxy (2.4 or newer) that puts several servers behind one address, over HTTP and gRPC.

Examples:
  shoal fleet haproxy --server gpu-1 --server gpu-2 --server gpu-3 > haproxy.cfg
  haproxy -c -f haproxy.cfg                              # check it, then run it by systemd or with -f
  echo "set server http/gpu-1 state drain" | socat stdio haproxy.sock      # no new requests for gpu-1; `ready` ends it

Options:
  --server <host[:port[:port]]>  a server, its HTTP port (8000) and its gRPC port (8001); repeat it
  --bind <address:port>          where HTTP is served (default: *:8000)
  --grpc-bind <address:port>     where gRPC is served (default: *:8001)
  --timeout <seconds>            the longest that a server may take to answer (default: 60)
  --admin-socket <path>          where servers are drained and added back (default: haproxy.sock)
  --sequence-header <name>       requests with the same value of this header field go to the same server, while it lives
                                 (default: x-sequence-id). HTTP's `sequence_id` is found in the JSON, too, where it
                                 stands in the first 16 KiB
  --json                         print JSON: {"balancer", "servers": […], "configuration": its text}
  --help                         print this and exit

Health is asked at /v2/health/ready of each HTTP port, every second. A server that is stopped refuses connections before
it ends, and these go to another. HAProxy takes as many connections as its limit of open files allows. What travels
between servers, and what does not: docs/scaling.md.

Exit codes: 0 done; 1 the command is wrong.
"""

_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<http>\d{1,5}))?(?::(?P<grpc>\d{1,5}))?")
_ADDRESS = re.compile(r"(?:\*|[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
_PATH = re.compile(r"[\w./@+-]+")
_FIELD = re.compile(r"[A-Za-z0-9-]+")


class FleetServer(NamedTuple):
    """One of the servers."""

    name: str  # unique among the servers
    host: str
    http_port: int
    grpc_port: int


def fleet(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Print the configuration; returns the exit code."""
    parser = VerbParser("fleet", "haproxy --server <host[:http port[:gRPC port]]> [--server …] [options]", _HELP)
    parser.add_argument("balancer", nargs="?")
    parser.add_argument("--server", action="append", default=[])
    parser.add_argument("--bind", default="*:8000")
    parser.add_argument("--grpc-bind", default="*:8001")
    parser.add_argument("--timeout", type=int, default=60)
    parser.add_argument("--admin-socket", default="haproxy.sock")
    parser.add_argument("--sequence-header", type=str.lower, default="x-sequence-id")
    return run_verb(parser, argv, _print)


def _print(arguments: argparse.Namespace) -> int:
    if arguments.balancer != "haproxy":
        raise CommandLineError(f"For which balancer? 'haproxy' is known, got '{arguments.balancer or ''}'.")
    for flag, text, kind in (
        ("--bind", arguments.bind, _ADDRESS),
        ("--grpc-bind", arguments.grpc_bind, _ADDRESS),
        ("--admin-socket", arguments.admin_socket, _PATH),
        ("--sequence-header", arguments.sequence_header, _FIELD),
    ):
        if not kind.fullmatch(text):
            raise CommandLineError(f"{flag} '{text}' is not one that HAProxy's configuration can have.")
    if arguments.timeout < 1:
        raise CommandLineError(f"--timeout must be at least 1, got {arguments.timeout}.")
    found = servers(arguments.server)
    text = haproxy_configuration(found, arguments)
    told = {"balancer": arguments.balancer, "servers": [each._asdict() for each in found], "configuration": text}
    show(told, text.removesuffix("\n"), as_json=arguments.json)
    return EXIT_DONE


def servers(texts: Sequence[str]) -> list[FleetServer]:
    """The servers that these values of --server name. Raises CommandLineError if there are none, and for one that is
    malformed or named twice."""
    if not texts:
        raise CommandLineError("Which servers? Name at least one by --server.")
    found: dict[str, FleetServer] = {}
    for text in texts:
        match = _SERVER.fullmatch(text)
        ports = [] if match is None else [int(match["http"] or 8000), int(match["grpc"] or 8001)]
        if match is None or not all(0 < port < 65536 for port in ports):
            raise CommandLineError(f"--server must be <host[:http port[:gRPC port]]>, got '{text}'.")
        name = re.sub(r"[^A-Za-z0-9._-]", "-", match["host"].strip("[]"))
        if match["http"]:
            name += f"-{ports[0]}"
        if name in found:
            raise CommandLineError(f"--server '{text}' is named twice.")
        found[name] = FleetServer(name, match["host"], *ports)
    return list(found.values())


def haproxy_configuration(servers: Sequence[FleetServer], arguments: argparse.Namespace) -> str:
    """The text of haproxy.cfg, for these servers and the command's other options."""
    http = "\n".join(f"    server {each.name} {each.host}:{each.http_port}" for each in servers)
    grpc = "\n".join(
        f"    server {each.name} {each.host}:{each.grpc_port} proto h2 check-proto h1 port {each.http_port}"
        for each in servers
    )
    return _HAPROXY.format(http=http, grpc=grpc, **vars(arguments))


#: A server that is no longer ready keeps the requests that it has: a server that is being stopped answers them. Braces
#: that HAProxy is to read are doubled for str.format.
_HAPROXY = """\
# Written by `shoal fleet haproxy`. Check with `haproxy -c -f FILE`.
global
    log stdout format raw local0 notice
    stats socket {admin_socket} mode 600 level admin

defaults
    mode http
    log global
    option dontlognull
    timeout connect 2s
    timeout client {timeout}s
    timeout server {timeout}s
    timeout http-request {timeout}s
    timeout http-keep-alive 60s
    timeout queue 5s
    # What a server has not accepted goes to another one; what it has is never sent again: it may have been executed.
    retries 3
    option redispatch 1
    retry-on conn-failure
    balance leastconn
    option httpchk GET /v2/health/ready
    http-check expect status 200
    default-server check inter 1s fastinter 200ms downinter 500ms rise 1 fall 2

frontend http
    bind {bind}
    default_backend http

backend http
    # Requests of a sequence, to the server that has its state.
    stick-table type string len 128 size 100k expire 1h
    option http-buffer-request
    http-request set-var(txn.sequence) req.body,json_query('$.parameters.sequence_id')
    stick on req.hdr({sequence_header})
    stick on var(txn.sequence) if {{ var(txn.sequence) -m found }} !{{ var(txn.sequence) -m str 0 }}
{http}

frontend grpc
    bind {grpc_bind} proto h2
    default_backend grpc

backend grpc
    stick-table type string len 128 size 100k expire 1h
    stick on req.hdr({sequence_header})
{grpc}
"""
