"""The first steps of every process of Shoal: it dies with its parent, and has a readable title.

Used in every process, right after its start. Linux only, as is the shared-memory transport.
"""

import atexit
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

#: The exit code of a worker whose GPU no longer responds: EX_SOFTWARE, which only models' code may use otherwise.
EXIT_DEVICE_LOST = 70

#: The signals that end a front end: at once, or when its requests are answered.
END_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT})

#: Signals that have a meaning for the supervisor alone, beside SIGUSR1, which gunicorn's processes handle.
SUPERVISORS_SIGNALS = (signal.SIGHUP, signal.SIGUSR2)

#: The signals of a group of processes that only the supervisor acts upon.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, *SUPERVISORS_SIGNALS)

#: From this size on a block of the heap is mapped on its own (ours): a road that parses bodies of 1 MB of JSON then
#: takes 42 MiB of memory instead of 107.
LARGE_BLOCK_BYTES = 512 * 1024

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_M_MMAP_THRESHOLD = -3  # the number of this setting in mallopt(3)
_ARG_START = 45  # the index of the arguments' address in what `stat_fields` returns (proc(5))
#: The signal mask of a thread that forks, from before the fork.
_forking = threading.local()
#: Opened once, before processes are forked: each opening makes a type, which took a forked process 0.3 MiB of copies.
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that has started it ends.

    `parent` is the pid of the parent, where it is known: so a parent that died before the call is noticed. The setting
    does not survive an exec, so every exec'd or forked process calls this itself.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Let this process go on when its parent ends: take back `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def ignore_group_signals() -> None:
    """Ignore SIGINT and SIGTERM: only the supervisor decides when a process has nothing left to answer.

    A terminal and systemd send them to the whole group of processes. So does systemd with the other signals that are
    meant for the supervisor alone, which are ignored, too.
    """
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def take_group_signals() -> None:
    """Like `ignore_group_signals`, for a process with users' code: by handlers that do nothing.

    An exec resets handlers, while a signal that is ignored stays so in the new program: users' code could not end by
    SIGTERM the programs that it starts.
    """
    for number in _GROUP_SIGNALS:
        signal.signal(number, take_signal)
        signal.siginterrupt(number, False)


def take_signal(number: int, frame: object) -> None:
    """The handler of `take_group_signals`."""


def give_forks_default_signals() -> None:
    """Have processes that this one forks from now on take the signals of the group as any program does, while this one
    ignores them or has handlers: multiprocessing sends SIGTERM to its children, and waits for their end. To be called
    once.

    A signal that comes right after the fork is blocked until its action is the default one: a blocked signal waits,
    while any other would have no effect.
    """
    os.register_at_fork(before=_block_group_signals, after_in_parent=_restore_mask, after_in_child=_restore_signals)


def _block_group_signals() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)


def _restore_mask() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _restore_signals() -> None:
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _restore_mask()


def ignore_supervisors_signals() -> None:
    """Ignore the signals that ask the supervisor to read files again, or to be upgraded: a signal that is not ignored
    would end this process."""
    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def unblock_end_signals() -> None:
    """Unblock the signals that end this process, which has handlers for them by now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def trim_heap() -> None:
    """Give free memory of the C library's heap back to the kernel: a load takes and frees more than serving needs."""
    with suppress(AttributeError):  # another library than glibc
        _LIBC.malloc_trim(0)


def return_large_blocks() -> None:
    """Have the C library map each block of LARGE_BLOCK_BYTES on its own, which returns to the kernel when it is freed.

    The C library's own limit grows to the largest block that was freed, up to 32 MiB, and from then on large blocks lie
    among small ones that outlive them. MALLOC_MMAP_THRESHOLD_ has precedence.
    """
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        with suppress(AttributeError):  # another library than glibc
            _LIBC.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def finish() -> None:
    """Finish a forked process before `os._exit`: the interpreter's finalisation is left out.

    Finalisation would free every object that a zygote had made, each in a copy of its page: that took 37 of the 49 ms
    of CPU of a worker that is started and stopped.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    _LIBC.fflush(None)  # flushes the output of libraries; Python's is unbuffered


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def pin_threads(pid: int, cores: Collection[int]) -> None:
    """Pin all threads of a process and of its descendants to these cores. Processes that have exited are skipped."""
    _for_threads(pid, lambda thread: os.sched_setaffinity(thread, cores))


def set_niceness(pid: int, niceness: int) -> None:
    """Set the niceness of a process and of its descendants. Processes that have exited are skipped."""
    _for_threads(pid, lambda thread: os.setpriority(os.PRIO_PROCESS, thread, niceness))


def _for_threads(pid: int, act: Callable[[int], None]) -> None:
    done = set[str]()
    # repeated until no new process is found; one just started has its parent's setting
    while left := _threads(pid) - done:
        for thread in left:
            with suppress(ProcessLookupError):
                act(int(thread))
        done |= left


def _threads(pid: int | str) -> set[str]:
    threads = set[str]()
    with suppress(FileNotFoundError, ProcessLookupError):
        threads.update(os.listdir(f"/proc/{pid}/task"))
    for thread in tuple(threads):
        with suppress(FileNotFoundError, ProcessLookupError):
            threads.update(*map(_threads, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()))
    return threads


def stat_fields(stat: Path) -> list[str]:
    """The fields of a process's or a thread's stat file (proc_pid_stat(5)) from the state on.

    The name before them may have blanks and brackets in it, and is the first 15 bytes of a process's title: where a
    model's name is not ASCII, the cut may be within a character.
    """
    return stat.read_bytes().rpartition(b") ")[2].decode("ascii").split()


def set_title(title: str, argument: str = "") -> None:
    """Set the title that `ps` shows: `shoal batcher`, `shoal worker densenet_0 (CPU 0-1)`. `argument` becomes one of
    the process's arguments, for programs that look for a process by it.

    The environment of a model may lack setproctitle; `ps` then shows the command, which ends with the instance's name.
    """
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(f"shoal {title} {argument}".rstrip())
    # /proc/PID/cmdline has the whole place of the arguments, so a zero byte in front of `argument` parts it from the
    # title. Of a title longer than that place the kernel shows only what precedes a zero byte: such a title stays as
    # it is, and programs part it at blanks.
    if argument and b"\0\0" in Path("/proc/self/cmdline").read_bytes():
        start = int(stat_fields(Path("/proc/self/stat"))[_ARG_START])
        if start:  # 0 where the kernel, or what stands for one, does not tell
            ctypes.c_char.from_address(start + len(f"shoal {title}".encode())).value = b"\0"
