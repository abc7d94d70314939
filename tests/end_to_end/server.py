"""A real server for tests: `shoal serve` as a user starts it, its log read until it says that it serves."""

import http.client
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[2] / "model_repository"
_STARTED = re.compile(rb"Started (HTTPService|GRPCInferenceService|Metrics Service) at [^ \"]*:([0-9]+)")
#: Generous: the machine may be busy, and what takes longer than this hangs.
DEADLINE_S = 60.0
#: The same of a server's start: the models of all frameworks took more than 60 s where eight programs ran on each core,
#: a third of it to import PyTorch.
START_S = 240.0
#: Between two looks at what a test waits for: a loop without a pause takes the core that the server needs to get there.
LOOK_AGAIN_S = 0.01
#: PR_CAPBSET_DROP of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, which counts from the next exec on.
_DROP_FILE_CAPABILITIES = (
    "import ctypes; prctl = ctypes.CDLL(None).prctl; [prctl(24, each, 0, 0, 0) for each in (1, 2)]"
)
Ledger = dict[str, Any]


@dataclass
class Server:
    """A running server. `log` grows while `read_log` is called."""

    process: "subprocess.Popen[bytes]"
    http_port: int = 0
    grpc_port: int = 0  # where flags ask for gRPC
    metrics_port: int = 0
    log: bytes = b""
    children: list[int] = field(default_factory=list)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        """Killed if the test did not end it."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    @property
    def url(self) -> str:
        """host:port, as tritonclient wants it."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def client_socket(self) -> str:
        """The path of the socket that `shoal.Client` connects to, as the log has named it."""
        (path,) = re.findall(rb'clients on this host find the server at ([^"]+)"', self.log)
        return str(path.decode())

    def read_on(self) -> None:
        """Read what the log says by now, which is lost where nobody reads it for long."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            if not (piece := os.read(self.process.stdout.fileno(), 65536)):
                return
            self.log += piece

    def read_log(self, until: bytes, deadline_s: float = DEADLINE_S, start: int = 0) -> bool:
        """Read the log until it contains `until`, from byte `start` on; False where it ended before."""
        assert self.process.stdout is not None
        end = time.monotonic() + deadline_s
        while self.log.find(until, start) < 0:
            if self.process.stdout.closed:
                return False
            left = end - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, left))
            assert ready, f"no {until!r} within {deadline_s} s:\n{self.log.decode()}"
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                return False
            self.log += piece
        return True

    def port_of(self, service: str) -> int:
        """Where a service listens, as the log says."""
        start = f"Started {service} at ".encode()
        assert self.read_log(start), self.log.decode()
        self.read_log(b"\n", start=self.log.index(start))
        _, _, rest = self.log.partition(start)
        return int(rest.partition(b"\n")[0].strip(b'"').rpartition(b":")[2])

    def ledger(self) -> Ledger:
        """What every process has taken and given back: SIGUSR1, and the line of the log that answers it."""
        start = len(self.log)
        self.process.send_signal(signal.SIGUSR1)
        assert self.read_log(b'"ledger {', start=start), self.log.decode()
        start = self.log.index(b'"ledger {', start)
        assert self.read_log(b"\n", start=start), self.log.decode()
        message: str = json.loads(self.log[start : self.log.index(b"\n", start)])
        ledger: Ledger = json.loads(message.removeprefix("ledger "))
        return ledger

    def ledger_once(self, condition: Callable[[Ledger], bool], expected: object = "balance") -> Ledger:
        """The first ledger of which `condition` holds; it fails, and shows what was `expected`, where none comes."""
        end = time.monotonic() + DEADLINE_S
        while not condition(ledger := self.ledger()):
            assert time.monotonic() < end, (expected, imbalances(ledger), ledger)
            time.sleep(LOOK_AGAIN_S)
        return ledger

    def ledger_at_rest(self, condition: Callable[[Ledger], bool] = lambda _: True) -> Ledger:
        """One that balances, and of which `condition` holds, as the one before it did: processes are counted one after
        the other, and what the first still had when it was counted may be gone when the last one is."""

        def is_at_rest(ledger: Ledger) -> bool:
            return not imbalances(ledger) and condition(ledger)

        self.ledger_once(is_at_rest)
        return self.ledger_once(is_at_rest)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Drain the log until the server has ended, and close it; its exit code."""
        self.read_log(b"\0never", deadline_s)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(deadline_s)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


def lasting(seconds: float) -> Callable[[], bool]:
    """A condition that holds after so long."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def only(*models: str) -> list[str]:
    """Flags for a server of these models of a repository alone: each that is not needed costs its start."""
    return ["--model-control-mode=explicit", *(f"--load-model={model}" for model in models)]


def launch(
    repository: Path | str | Sequence[Path],
    *flags: str,
    environment: Mapping[str, str] | None = None,
    descriptors: tuple[int, int] | None = None,
    as_mere_user: bool = False,
    paths: Sequence[Path] = (),
) -> Server:
    """Exec a server on free ports; it may still be loading, or fail.

    `environment` is added to ours. `descriptors` are the soft and the hard limit of open files that the server is
    started with, at most our hard one; ours are left alone, since a test process may have more open already.
    `paths` come before the flags, as on the command line of a user without a repository.
    `as_mere_user` takes root's right to read any file from the processes that it starts.
    """
    repositories = [repository] if isinstance(repository, (Path, str)) else repository
    # In a process group of its own, as of a shell: a signal to the group is one to the server.
    program = "import os; os.setpgid(0, 0); from shoal.cli import main; raise SystemExit(main())"
    if descriptors is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limits = tuple(min(each, hard) for each in descriptors)
        program = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limits}); {program}"
    if as_mere_user and os.geteuid() == 0:
        program = f"{_DROP_FILE_CAPABILITIES}; {program}"
    command = [sys.executable, "-c", program, "serve", *map(str, paths)]
    command += [f"--model-repository={each}" for each in repositories]
    # One process less to start, and to look after, where no test asks for it.
    grpc = "--grpc-port=0" if any("grpc" in flag for flag in flags) else "--allow-grpc=false"
    command += ["--http-port=0", "--metrics-port=0", grpc, *flags]
    variables = {**os.environ, **(environment or {})}
    return Server(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))


@contextmanager
def serving(
    repository: Path | str | Sequence[Path],
    *flags: str,
    environment: Mapping[str, str] | None = None,
    descriptors: tuple[int, int] | None = None,
    as_mere_user: bool = False,
    paths: Sequence[Path] = (),
) -> Iterator[Server]:
    """A server that answers, launched as `launch` says; killed afterwards if the test did not stop it."""
    with launch(
        repository,
        *flags,
        environment=environment,
        descriptors=descriptors,
        as_mere_user=as_mere_user,
        paths=paths,
    ) as server:
        assert server.read_log(b"Started Metrics Service", START_S), server.log.decode()
        server.read_log(b"\n", DEADLINE_S)
        ports = {name: int(port) for name, port in _STARTED.findall(server.log)}
        server.http_port, server.metrics_port = ports[b"HTTPService"], ports[b"Metrics Service"]
        server.grpc_port = ports.get(b"GRPCInferenceService", 0)
        server.children = descendants(server.process.pid)
        yield server


@contextmanager
def serving_to_the_end(repository: Path | str | Sequence[Path], *flags: str, **more: Any) -> Iterator[Server]:
    """A server that answers, as `serving` says; at the end it is stopped, and must exit with 0."""
    with serving(repository, *flags, **more) as server:
        yield server
        assert server.stop() == 0, server.log.decode()


def samples(metrics_port: int) -> dict[str, float]:
    """/metrics: name and labels as they are printed → value."""
    connection = http.client.HTTPConnection("127.0.0.1", metrics_port, timeout=DEADLINE_S)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def imbalances(ledger: Ledger) -> list[tuple[str, str, int]]:
    """(process, what, how much) has been taken and not given back; nothing while nothing is in flight."""
    found = [(each["title"], "silent", 1) for each in ledger["silent"]]
    for counts in (*ledger["processes"], {"title": "shoal supervisor", **ledger["supervisor"]}):
        for name, count in counts.items():
            what, _, kind = name.rpartition("_")
            if kind == "acquired":
                count -= counts[f"{what}_released"]
            elif kind not in ("open", "running", "held"):
                continue
            if count:
                found.append((counts["title"], name, count))
    return found


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, as the kernel lists them."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):
        return found  # it has ended meanwhile
    return found


def await_standby(server: Server) -> list[int]:
    """All its processes, once the last that its start begins is among them: one more batcher, which stands by. Until
    it says so it is called a zygote, as whoever forks it."""
    end = time.monotonic() + DEADLINE_S
    while True:
        titles = {pid: title(pid) for pid in descendants(server.process.pid)}
        if {"shoal batcher", "shoal batcher (standby)"} <= set(titles.values()):
            return list(titles)
        assert time.monotonic() < end, titles
        time.sleep(LOOK_AGAIN_S)


def title(pid: int) -> str:
    """What the process calls itself, "shoal worker simple_0_0 (CPU 0)"; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for_deaths(pids: Sequence[int]) -> bool:
    """Whether all these processes end, as the kernel tells. How soon they can depends on what else the machine runs."""
    end = time.monotonic() + DEADLINE_S
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], max(0.0, end - time.monotonic()))[0]:
                return False
        finally:
            os.close(pidfd)
    return True


def signal_worker(server: Server, model: str, number: signal.Signals) -> None:
    """Stop or continue the model's only instance."""
    (pid,) = [pid for pid in server.children if f"worker {model}_0_0 " in title(pid)]
    os.kill(pid, number)


def footprint(ledger: Ledger) -> list[object]:
    """What does not grow, however much has been asked."""
    processes = sorted((each["title"], each["descriptors"], each["mapped_bytes"]) for each in ledger["processes"])
    names = ("descriptors", "children", "shared_bytes")
    return [*processes, *(ledger["supervisor"][name] for name in names)]


def await_rest(server: Server) -> None:
    """Wait until the processes are those of a server at rest: a batcher stands by; the poller has ended, and the base
    zygote of a server that loads no more models."""
    early = ("shoal repository poller", "shoal zygote base")
    ending = [pid for pid in await_standby(server) if title(pid) in early]
    assert wait_for_deaths(ending)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ending))  # not even waited for by its parent


def wait_until(condition: Callable[[], bool], what: Callable[[], object] = lambda: "it never came") -> None:
    """Return once the condition holds, at which this looks again and again; where it does not come to, say `what` there
    is instead."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(LOOK_AGAIN_S)


def worker_of(server: Server, instance: str = "slow_0_0") -> int:
    """The pid of the instance's worker that lives now."""
    return next(pid for pid in descendants(server.process.pid) if title(pid).startswith(f"shoal worker {instance} "))
