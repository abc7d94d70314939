"""docs/benchmarks.md: the order of its chapters, and the text of the first, on Shoal and its peers.

A chapter has tables, the conditions of the measurement, and how to measure again.
"""

import os
import platform
import re
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.peers import Peer
from bench.results import Row
from bench.table import OURS, by_process, details, summaries

HEAD = """\
# Benchmarks

Written by `scripts/bench`, a chapter at a time; do not edit.
"""

#: The chapters in order; a comment in the document marks where each begins.
CHAPTERS = ("others", "grpc", "torchserve", "itself")

TEXT = """\
## Shoal beside each of the others

Written by `scripts/bench --write`. {rounds} rounds of {seconds} s for each server, which are all up and take turns of
half a second; the tables show medians.

![Requests per second of each server under each workload](benchmarks.svg)

Requests/s: more is better. CPU time per request, over all processes of a server: less is better. “× Triton” is Shoal's
figure divided by Triton's; of requests/s it is the median of all pairs of turns beside each other, whatever the machine
did meanwhile, and half of the pairs lie between the figures in parentheses.

{summary}{by_process}
### Conditions

{machine}
- The load generator ({generator}, one thread) runs on the same cores and takes its part of them. Each request has a
  trace (`traceparent`) of its own and, in Triton's protocol, an id of its own; equal requests are all the same bytes.
- Each server has one instance of the model, on the CPU, and is started anew for every model in every round. Its answer
  is checked before and after the load: to the bit, for the MLP to 0.0001.
- The MLP runs in ONNX Runtime with one thread and batches of at most 32, everywhere but in Flask, which has no batches.
- The table of the look-ups is a mapped file of 512 MB: Shoal's backend `embedding`, and a `model.py` in Triton.
- *p50*, *p99*: of the time from sending a request to its whole answer. *CPU*: user and system time of the process tree.
  *memory*: proportional set size (PSS) of the process tree after the load. *start*: from exec to the first right
  answer, files in the page cache. *instructions*: of the process tree, not of the kernel for it, counted by `perf stat`
  in a second of its own where perf is installed.
- {others}

{peers}

Run it yourself:

```sh
scripts/bench --quick
scripts/bench --help
```

### Every figure

{details}"""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on which the figures depend."""

    seconds: int
    rounds: int
    machine: Sequence[str]
    generator: str  # with its version
    peers: Sequence[tuple[str, str, str]]  # title, versions, notes


def conditions(
    generator: str, seconds: int, rounds: int, peers: Sequence[Peer], versions: Mapping[str, str]
) -> Conditions:
    """The conditions of a measurement on this machine, now."""
    cpus = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    kernel = re.match(r"[0-9.]*[0-9]", platform.release())
    machine = [
        f"{cpus[0] if cpus else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
        + (f", {round(int(memory[1]) / 1024**2)} GiB of memory" if memory else ""),
        f"Linux {kernel[0] if kernel else platform.release()}, {_python()}",
        f"{time.strftime('%Y-%m-%d')}",
    ]
    named = [(peer.title, versions.get(peer.name, "not measured"), peer.notes) for peer in peers]
    return Conditions(seconds, rounds, machine, generator, named)


def _python() -> str:
    """The interpreter, with the system that brought it, since others may be compiled otherwise."""
    name = f"Python {platform.python_version()}"
    if Path(sys.executable).resolve().parent == Path("/usr/bin"):
        with suppress(OSError):
            name += f" of {platform.freedesktop_os_release()['PRETTY_NAME']}"
    return name


def markdown(rows: Sequence[Row], where: Conditions) -> str:
    """The chapter on Shoal and its peers, as Markdown."""
    return TEXT.format(**figures(rows, where))


def figures(rows: Sequence[Row], where: Conditions) -> dict[str, object]:
    """The parts of a chapter on several servers: the tables, and the conditions."""
    ours = by_process({row.workload.title: row for row in rows if row.peer.name == OURS})
    return {
        "rounds": where.rounds,
        "seconds": where.seconds,
        "summary": summaries(rows),
        "machine": "\n".join(f"- {line}" for line in where.machine),
        "generator": where.generator,
        "by_process": ours and "\nShoal, by process:\n\n" + ours,
        "others": others(rows),
        "peers": "\n".join(_item(f"**{title}**: {version}. {notes}") for title, version, notes in where.peers),
        "details": details(rows),
    }


def others(rows: Sequence[Row]) -> str:
    """The load of other programs during the measurement, as an item of a list."""
    foreign = [sample.foreign for row in rows for sample in row.samples]
    mean, worst = (fmean(foreign), max(foreign)) if foreign else (0, 0)
    return (
        "*others*: the part of the cores that went to neither the server nor the load generator; here "
        f"{mean:.0%} on average,\n  {worst:.0%} at worst. Where it is high, trust CPU time and instructions more than "
        "the rate."
    )


def put(document: str, name: str, chapter: str) -> str:
    """The document with this chapter in its place, new or replacing an older one; other chapters are left alone."""
    _, *parts = re.split(r"^<!-- chapter: (\w+) -->\n", document, flags=re.MULTILINE)
    chapters = dict(zip(parts[::2], parts[1::2], strict=True)) | {name: chapter}
    texts = [f"<!-- chapter: {each} -->\n{chapters[each].strip()}\n" for each in CHAPTERS if each in chapters]
    return "\n".join([HEAD, *texts])


def _item(text: str) -> str:
    return textwrap.fill(text, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
