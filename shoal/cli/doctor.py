"""The verb `doctor`: checks this machine and installation for what a server would suffer from, and says how to mend it.

machine_facts.py reads the facts; pure functions here judge them.
"""

import argparse
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shoal.cli import colour
from shoal.cli.colour import coloured
from shoal.cli.machine_facts import MachineFacts, read_facts
from shoal.cli.models import table
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb
from shoal.placement import format_cores

EXIT_FOUND = 2
GOOD, NOTE, BAD = "ok", "note", "BAD"
_COLOURS = {rf"^{BAD}\b": colour.BAD, rf"^{NOTE}\b": colour.NOTE, rf"^{GOOD}\b": colour.GOOD}

_HELP = """\
Look at this machine and this installation as a server would find them: interpreter, frameworks, kernel, cores, memory,
/dev/shm, descriptors, ports, GPUs. A row says what was found; a `note` costs speed or a feature, `BAD` keeps a server
from starting, and each says what to type.

Examples:
  shoal doctor
  shoal doctor --http-port 9000 --grpc-port 9001 --metrics-port 9002
  shoal doctor --json | jq -r '.[] | select(.state != "ok") | .advice'

Options:
  --http-port, --grpc-port, --metrics-port <port>   the ports that the server will have (default: 8000, 8001, 8002)
  --json                                            print JSON: a list of {"state", "subject", "found", "advice"}
  --help                                            print this and exit

Exit codes: 0 a server can run; 1 the command is wrong; 2 something is BAD.
"""
_MIB, _GIB = 1024**2, 1024**3
#: The free bytes of /dev/shm that a server of a few models takes; with less, its segments are memfds (shm/segment.py).
_DEV_SHM_NBYTES = 256 * _MIB
#: The least limit of open descriptors that is good: a server without models has 30 open, each instance takes about ten
#: (supervisor/descriptors.py).
_DESCRIPTORS = 4096
#: The least available memory in bytes: for one idle server of small models, and a large payload beside it (ours).
_MEMORY_NBYTES = _GIB
#: The time in ns from which a read of the clock is slow, by a system call; without one it takes less than 100 (ours).
_SLOW_CLOCK_NS = 400


class Row(NamedTuple):
    """A finding about a subject; `advice` is what to type or change, "" where nothing needs to be."""

    state: str  # GOOD, NOTE or BAD
    subject: str
    found: str
    advice: str = ""


def doctor(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Print the findings; returns the exit code."""
    parser = VerbParser("doctor", "[options]", _HELP)
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(f"--{name}-port", type=_port, default=port)
    return run_verb(parser, argv, lambda arguments: _doctor(arguments, environ))


def _doctor(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    ports = {"http": arguments.http_port, "grpc": arguments.grpc_port, "metrics": arguments.metrics_port}
    rows = list(examine(read_facts(ports, environ)))
    if arguments.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        print(coloured(as_text(rows), _COLOURS))
    return EXIT_FOUND if any(row.state == BAD for row in rows) else EXIT_DONE


def as_text(rows: Sequence[Row]) -> str:
    """A table of the findings, with advice below the rows that need it."""
    lines = table(["STATE", "SUBJECT", "FOUND"], [(row.state, row.subject, row.found) for row in rows]).splitlines()
    indent = " " * lines[0].index("FOUND")
    printed = [lines[0]]
    for line, row in zip(lines[1:], rows, strict=True):
        printed += [line, *([f"{indent}→ {row.advice}"] if row.advice else [])]
    return "\n".join(printed)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got '{text}'")
    return int(text)


def examine(facts: MachineFacts) -> Iterator[Row]:
    """A row for each subject, or several. Pure."""
    for examined in _EXAMINATIONS:
        yield from examined(facts)


# -- the installation -------------------------------------------------------------------------------------------------


def _noted(subject: str, found: str, advice: str) -> Row:
    """A row whose state is NOTE if there is advice, else GOOD."""
    return Row(NOTE if advice else GOOD, subject, found, advice)


def _shoal(facts: MachineFacts) -> Iterator[Row]:
    yield Row(GOOD, "shoal", facts.shoal)


def _interpreter(facts: MachineFacts) -> Iterator[Row]:
    advice = (
        "a build with PGO (Debian's, Fedora's, conda's, python.org's images) takes up to a sixth less CPU: "
        "SHOAL_PYTHON=/usr/bin/python3, or another environment"
    )
    yield _noted("python", facts.python, "" if facts.is_profile_guided else advice)


def _frameworks(facts: MachineFacts) -> Iterator[Row]:
    for backend, framework in facts.frameworks.items():
        if framework.version:
            yield Row(GOOD, f"backend {backend}", f"{framework.distribution} {framework.version}")
    missing = {backend: each for backend, each in facts.frameworks.items() if not each.version}
    if missing:
        extras = ",".join(each.extra for each in missing.values())
        yield Row(GOOD, "backends", f"not installed: {', '.join(missing)} (pip install 'shoal[{extras}]')")


# -- the machine ------------------------------------------------------------------------------------------------------


def _kernel(facts: MachineFacts) -> Iterator[Row]:
    if facts.kernel_lack:
        yield Row(BAD, "kernel", f"Linux {facts.kernel}: no server can run here", facts.kernel_lack)
    else:
        yield Row(GOOD, "kernel", f"Linux {facts.kernel}")


def _cores(facts: MachineFacts) -> Iterator[Row]:
    found, advice = f"{len(facts.cores)} ({format_cores(facts.cores)})", ""
    if facts.cpu_quota is not None and facts.cpu_quota < len(facts.cores):
        found += f", of which the control group grants {facts.cpu_quota:g}"
        advice = "workers are pinned to cores that the quota takes away: grant whole cores (cpuset), or raise the quota"
    yield _noted("cores", found, advice)


def _memory(facts: MachineFacts) -> Iterator[Row]:
    advice = "large payloads may be refused: --shm-oversize-mib, --http-slab-mib make less do"
    found = f"{facts.available_nbytes // _MIB} MiB available"
    yield _noted("memory", found, advice if facts.available_nbytes < _MEMORY_NBYTES else "")
    if facts.overcommit == 2:
        yield Row(
            NOTE,
            "overcommit",
            "vm.overcommit_memory=2: memory that is reserved and never used counts as used",
            "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio",
        )


def _dev_shm(facts: MachineFacts) -> Iterator[Row]:
    if facts.dev_shm_nbytes is None:
        yield Row(NOTE, "/dev/shm", "missing or not writable", "shared memory is made by memfd_create; nothing to do")
        return
    advice = "shared memory is made by memfd_create instead; in a container: --shm-size=1g, or a volume in memory"
    found = f"{facts.dev_shm_nbytes // _MIB} MiB free"
    yield _noted("/dev/shm", found, advice if facts.dev_shm_nbytes < _DEV_SHM_NBYTES else "")


def _descriptors(facts: MachineFacts) -> Iterator[Row]:
    advice = f"each connection and each instance takes some: ulimit -Hn {_DESCRIPTORS}, LimitNOFILE= under systemd"
    found = f"{facts.descriptors} (hard limit)"
    yield _noted("descriptors", found, advice if facts.descriptors < _DESCRIPTORS else "")


def _limits(facts: MachineFacts) -> Iterator[Row]:
    if facts.low_limit:
        yield Row(BAD, "limits", "too low for a server", facts.low_limit)


def _clock(facts: MachineFacts) -> Iterator[Row]:
    advice = "each look enters the kernel; see /sys/devices/system/clocksource/clocksource0/available_clocksource"
    yield _noted("clock", f"{facts.clock_ns} ns a look", advice if facts.clock_ns > _SLOW_CLOCK_NS else "")


def _gpus(facts: MachineFacts) -> Iterator[Row]:
    yield Row(GOOD, "GPUs", facts.gpus)


# -- the server's places ----------------------------------------------------------------------------------------------


#: errno of an attempt to listen on 127.0.0.1, as a server without flags does → the remedy; {0} is the service's name.
_REMEDIES = {
    errno.EADDRNOTAVAIL: "no network interface has 127.0.0.1: ip link set lo up, or another --{0}-address=<address>",
    errno.EACCES: "ports below 1024 are for root: --{0}-port=<port>",
}


def _ports(facts: MachineFacts) -> Iterator[Row]:
    for name, (port, error) in facts.ports.items():
        if not error:
            yield Row(GOOD, f"{name} port", f"{port} is free")
        elif facts.is_served and name == "http":
            yield Row(GOOD, f"{name} port", f"{port}: a server answers there (shoal models)")
        else:
            advice = _REMEDIES.get(error, "name another: --{0}-port=<port>").format(name)
            yield Row(BAD, f"{name} port", f"{port}: {os.strerror(error)}", advice)


_EXAMINATIONS: tuple[Callable[[MachineFacts], Iterator[Row]], ...] = (
    _shoal, _interpreter, _frameworks, _kernel, _cores, _memory, _dev_shm, _descriptors, _limits, _clock, _gpus, _ports,
)  # fmt: skip
