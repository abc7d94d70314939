"""The verb `upgrade`: the installed version takes a running server's place, on the same sockets and without a gap."""

import argparse
import json
import os
import re
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, EXIT_NO_ANSWER, FailedError, VerbParser, run_verb
from shoal.control import ADDRESS_PREFIX, GONE, Channel, join, peer_of
from shoal.messages.message import Message, MessageError
from shoal.messages.upgrade import STOPPING, TO_COMMAND, UpgradeBegun, UpgradeEnded, UpgradeWanted

_HELP = """\
Replace a running server by the version that is installed now. A new server is started with the command line and the
environment of the old one, on the same sockets; once its models have loaded it takes over, and the old one answers what
it has accepted, and ends. No request fails. If the new server does not come up, the old one goes on as if nothing had
happened, and the command says why. Run it on the server's host, as its user or as root.

Examples:
  pip install --upgrade shoal && shoal upgrade
  shoal upgrade --pid 4711                       # one of several servers on this host
  shoal upgrade --pid-file /run/shoal/pid
  sudo -u shoal shoal upgrade                    # the service of systemd, whose main process changes

Options:
  --pid <pid>        the server's process (default: the only server here)
  --pid-file <file>  the file with the server's pid
  --json             print JSON, a line for each event: {"event": "started", "pid", "limit_s"}, {"event": "serves",
                     "pid", "version"}, {"event": "ended", "pid"}, or {"error"}
  --help             print this and exit

SIGUSR2 to the server does the same, and reports the result in the log alone. docs/operations.md: what is carried
over, what is not, and when an upgrade is refused.

Exit codes: 0 done; 1 the command is wrong, or no server is found; 2 refused or failed, the old server goes on; 3 the
server has ended.
"""

#: A supervisor's address in /proc/net/unix: an abstract one, with the supervisor's pid behind its prefix.
_ADDRESS = re.compile(rf"@({ADDRESS_PREFIX}([0-9]+)-[0-9a-f]{{32}})$")
_SOCKETS = Path("/proc/net/unix")
#: How many seconds after the time limit of the new server the old server's answer may come (ours): the old server ends
#: the new one before it answers.
SLACK_S = 120.0


def upgrade(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Upgrade a server; returns the exit code."""
    parser = VerbParser("upgrade", "[--pid <pid> | --pid-file <file>]", _HELP)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pid", type=int)
    which.add_argument("--pid-file")

    def work(given: argparse.Namespace) -> int:
        pid, address = _choose(given, servers(_SOCKETS.read_text(errors="replace")))
        return _ask(pid, address, as_json=given.json)

    return run_verb(parser, argv, work)


def servers(sockets: str) -> dict[int, str]:
    """The servers among the sockets that /proc/net/unix lists: pid → address of the supervisor."""
    found = (_ADDRESS.search(line) for line in sockets.splitlines())
    return {int(match[2]): f"@{match[1]}" for match in found if match is not None}


def _choose(arguments: argparse.Namespace, found: Mapping[int, str]) -> tuple[int, str]:
    """The server that is meant. Raises CommandLineError where there is none, or several."""
    pid = arguments.pid
    if arguments.pid_file is not None:
        try:
            pid = int(Path(arguments.pid_file).read_text())
        except OSError as error:
            raise CommandLineError(f"--pid-file: cannot read '{arguments.pid_file}': {error.strerror}") from None
        except ValueError:
            raise CommandLineError(f"--pid-file: '{arguments.pid_file}' has no pid.") from None
    if pid is not None:
        if pid not in found:
            raise CommandLineError(f"process {pid} is no Shoal server of this version or later")
        return pid, found[pid]
    if not found:
        raise CommandLineError("no Shoal server runs here; start one: shoal serve --model-repository <directory>")
    if len(found) > 1:
        running = "\n".join(_shown(each) for each in sorted(found))
        raise CommandLineError(f"several servers run here; say which one by --pid:\n{running}")
    return next(iter(found.items()))


def _shown(pid: int) -> str:
    try:
        return f"  {pid}  {os.readlink(f'/proc/{pid}/cwd')}"
    except OSError:
        return f"  {pid}"


def _ask(pid: int, address: str, *, as_json: bool) -> int:
    """Ask a supervisor for an upgrade, and print the result; returns the exit code."""
    try:
        channel = join(UpgradeWanted(), address)
    except OSError as error:
        raise CommandLineError(f"process {pid} cannot be asked: {error.strerror or error}") from None
    with channel:
        if _peer(channel) != pid:
            raise CommandLineError(f"what answers in place of process {pid} is another process; nothing was done")
        try:
            return _follow(pid, _messages(channel), as_json=as_json)
        except (*GONE, MessageError):
            said = f"Process {pid} has ended, or does not let this user ask it. Ask as its user."
        except TimeoutError:
            said = f"Process {pid} does not say what has come of it; its log does."
    raise FailedError(said, code=EXIT_NO_ANSWER)


def _peer(channel: Channel) -> int:
    duplicate = socket.socket(fileno=os.dup(channel.fileno()))
    with duplicate:
        return peer_of(duplicate)[0]


def _messages(channel: Channel) -> Iterator[Message]:
    """The supervisor's messages, as they come. Raises TimeoutError once SLACK_S, and the time limit in UpgradeBegun,
    have passed, and EOFError when the server has ended."""
    ends_s = time.monotonic() + SLACK_S
    while True:
        if not select.select([channel], [], [], max(0.0, ends_s - time.monotonic()))[0]:
            raise TimeoutError
        message, _ = channel.receive(TO_COMMAND)
        if isinstance(message, UpgradeBegun):
            ends_s += message.limit_s
        yield message


def _follow(pid: int, messages: Iterator[Message], *, as_json: bool) -> int:
    """Print what becomes of an upgrade of the server `pid`; returns the exit code. Raises FailedError where the upgrade
    fails."""

    def show_event(text: str, **event: Any) -> None:
        print(json.dumps(event) if as_json else text, flush=True)

    for message in messages:
        if isinstance(message, UpgradeBegun):
            said = f"Process {message.pid} is started beside process {pid}, and has {message.limit_s:g} s."
            show_event(said, event="started", pid=message.pid, limit_s=message.limit_s)
        elif isinstance(message, UpgradeEnded) and message.reason:
            advice = [] if message.reason == STOPPING else [f"Process {pid} goes on as before."]
            raise FailedError(f"No upgrade: {message.reason}.", *advice)
        elif isinstance(message, UpgradeEnded):
            said = f"Process {message.pid} (shoal {message.version}) serves in the place of process {pid}."
            show_event(said, event="serves", pid=message.pid, version=message.version)
            break
    try:
        for _ in messages:
            """Nothing more is said until the connection ends."""
    except GONE:
        show_event(f"Process {pid} has answered what it had accepted, and has ended.", event="ended", pid=pid)
    return EXIT_DONE
