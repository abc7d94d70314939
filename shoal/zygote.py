"""A zygote has imported the modules of one kind of process, and forks such a process on request.

Run as `python -m shoal.zygote`.

    supervisor ── module, environment; a socket of the child's own, its stdout and stderr ──► zygote
    zygote forks the middle ─► the middle forks the child, and ends ─► the child is the supervisor's
    child ── its pid ──► supervisor ── descriptors, go ──► child: runs the module's main(), as `python -m` would have

The supervisor is a subreaper, so the child becomes the supervisor's: it is waited for and watched like a child that
was exec'd, and also ends with the supervisor. CLONE_PARENT would save the second fork, 1 ms, but bypasses libc's fork
and Python's, which know what must be repaired afterwards. Whatever fails here, the child's socket closes, and the
supervisor execs the program instead.

A child may be a zygote itself, which imports more: so processes of several kinds share the pages of what all import.

A zygote has one thread, maps no segment, and holds no socket but the one for its orders. If an import has started a
thread, the zygote reports that and forks no process: a lock which that thread held would be held in the child for ever.
"""

import faulthandler
import gc
import importlib
import os
import select
import socket
import sys
import warnings
from collections.abc import Sequence

from shoal import log
from shoal.control import GONE, Channel
from shoal.messages.message import close_descriptors
from shoal.messages.to_zygote import (
    ORDERS_VARIABLE,
    SUPERVISOR_VARIABLE,
    TO_FORKED,
    TO_ZYGOTE,
    Descriptor,
    Fork,
    Forked,
    ZygoteReady,
    ZygoteUnfit,
)
from shoal.open_files import explain_start
from shoal.process import die_with_parent, finish, ignore_group_signals, set_title, trim_heap


def main() -> int:
    """Run a zygote; returns its exit status. A child that it forks ends in here, with its own. The arguments of the
    process are the zygote's kind, and the modules that it imports."""
    _, name, *modules = sys.argv
    fd, supervisor = int(os.environ[ORDERS_VARIABLE]), int(os.environ[SUPERVISOR_VARIABLE])
    die_with_parent(supervisor)
    faulthandler.enable()
    set_title(f"zygote {name}")
    ignore_group_signals()
    channel = Channel(socket.socket(fileno=fd))
    gc.disable()  # freed garbage leaves holes, which each child would fill in a copy of the page
    reason = _preload(modules)
    trim_heap()  # compiling modules without bytecode leaves free memory
    gc.freeze()  # the children share these pages as long as the collector does not touch them
    try:
        channel.send(ZygoteUnfit(reason) if reason else ZygoteReady())
        order = _serve(channel)
    except GONE:
        return 0  # the supervisor is gone, or does not use an unfit zygote
    channel.close()
    _become(order, supervisor)
    os._exit(_run(order.program[0]))


def _run(module: str) -> int:
    """Run a child's module; returns its exit status, or that of a process that it has forked. A child ends as a process
    of multiprocessing's does, without the interpreter's finalisation."""
    try:
        status = importlib.import_module(module).main()
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)  # noqa: T201 - as the interpreter does
            status = 1
    finish()
    return status or 0


def _preload(modules: Sequence[str]) -> str:
    """Import modules; returns "" where this process can be forked now, otherwise the reason."""
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - an exec'd process reports the error itself
        return f"its imports failed with {type(error).__name__}: {error}"
    num_threads = len(os.listdir("/proc/self/task"))
    return "" if num_threads == 1 else f"importing {modules[-1]} has started {num_threads - 1} threads"


def _serve(channel: Channel) -> Fork:
    """Fork a child for each order; returns in each child, with its order. Raises EOFError without a supervisor."""
    while True:
        order, _ = channel.receive(TO_ZYGOTE)
        try:
            with warnings.catch_warnings():
                # From 3.12 on Python warns of threads, which it miscounts where a process's title has spaces.
                warnings.simplefilter("ignore", DeprecationWarning)
                if _fork():
                    return order
        except OSError as error:
            # A zygote has no log settings; its stderr is the server's.
            log.put(sys.stderr, f"a zygote cannot fork: {explain_start(error)}\n")
        close_descriptors(order)


def _fork() -> bool:
    """Fork a child of the parent process; returns True in the child. Raises OSError where the system refuses."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return False
    try:
        end = os.pidfd_open(os.getpid())
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    # The descriptor becomes readable when this process's parent is the supervisor.
    select.select([end], [], [])
    os.close(end)
    return True


def _become(order: Fork, supervisor: int) -> None:
    """Turn a zygote's copy into the process of an order. The module is run once the supervisor watches the process."""
    die_with_parent(supervisor)
    link = Channel(socket.socket(fileno=order.link))
    try:
        link.send(Forked(os.getpid()))
        passed = _await_begin(link)
    except GONE:
        os._exit(1)  # too late: the supervisor has exec'd another process instead
    link.close()
    for fd, stream in ((order.stdout, 1), (order.stderr, 2)):
        if fd is not None:
            os.dup2(fd, stream)
            os.close(fd)
    os.environ.update(order.environment)
    os.environ.update({variable: ",".join(map(str, fds)) for variable, fds in passed.items()})
    sys.argv = order.program
    numpy_random = sys.modules.get("numpy.random")  # Python's own generator reseeds itself
    if numpy_random is not None:
        numpy_random.seed()
    gc.enable()


def _await_begin(link: Channel) -> dict[str, list[int]]:
    """The descriptors that are passed to a forked process, by the environment variable that will have their
    numbers. Raises EOFError, ConnectionError where the process is not wanted any more."""
    passed: dict[str, list[int]] = {}
    while isinstance(message := link.receive(TO_FORKED)[0], Descriptor):
        passed.setdefault(message.variable, []).append(message.fd)
    return passed


if __name__ == "__main__":
    sys.exit(main())
