"""The entry point of the supervisor's process: its log, title and sockets, the machine's resources; then it serves."""

import faulthandler
import logging
import os
import sys
from pathlib import Path

from shoal import log
from shoal.cloud_url import CloudUrl
from shoal.errors import ShoalError
from shoal.messages.shared import LogSettings
from shoal.options import ServerOptions
from shoal.process import set_title, trim_heap
from shoal.repository.cloud_cache import take_slot
from shoal.repository.slots import take_store_slot
from shoal.supervisor.descriptors import check_limit, raise_limit
from shoal.supervisor.kernel import check_kernel
from shoal.supervisor.key_file import read_keys
from shoal.supervisor.machine import find_machine, server_cores
from shoal.supervisor.pid_file import PidFile, PidFileError, end_tidily
from shoal.supervisor.process_limits import check_process_limits
from shoal.supervisor.processes.listeners import bind, passed_sockets
from shoal.supervisor.processes.mps import check_mps
from shoal.supervisor.service import Notifier
from shoal.supervisor.supervisor import EXIT_FAILED, Supervisor
from shoal.supervisor.upgrade.launch import Launch
from shoal.supervisor.upgrade.predecessor import PID_FILE, Predecessor, UpgradeFailedError
from shoal.supervisor.upgrade.upgrade import Origin

_log = logging.getLogger(__name__)


def run(options: ServerOptions, pid_file: PidFile | None = None) -> int:
    """Serve until a signal ends the server, or until a new server has taken over; returns the exit code. `pid_file` is
    that of the options if the caller has taken it already."""
    log_settings = LogSettings(
        log_verbose=options.log_verbose,
        log_info=options.log_info,
        log_warning=options.log_warning,
        log_error=options.log_error,
        log_format=options.log_format,
    )
    log.describe("supervisor")
    log.configure(**log_settings)
    if options.log_file:
        try:
            log.to_file(options.log_file)
        except OSError as error:
            _log.error("cannot write the log to '%s': %s. Give another --log-file", options.log_file, error.strerror)
            return EXIT_FAILED
    # SageMaker's toolkit finds TorchServe's process by the last word of its title.
    set_title("supervisor", "org.pytorch.serve.ModelServer" * options.allow_torchserve)
    raise_limit()
    faulthandler.enable()  # systemd's watchdog ends a server with SIGABRT: the journal then has the supervisor's stack
    end_tidily()
    launch = Launch.of(sys.executable, sys.orig_argv, os.environ)
    predecessor: Predecessor | None = None
    try:
        predecessor = Predecessor.take(os.environ)
        pid_file = pid_file or _pid_file(options.pid_file, predecessor)
        supervisor = _prepare(options, log_settings, Origin(launch, predecessor, pid_file))
    except (OSError, ShoalError, UpgradeFailedError, PidFileError) as error:
        _log.error("%s", error)
        if predecessor is not None:
            predecessor.fail(str(error))
        return EXIT_FAILED
    else:
        trim_heap()  # memory that imports have freed goes back to the system
        return supervisor.run()
    finally:
        if pid_file is not None:
            pid_file.remove()


def _prepare(options: ServerOptions, log_settings: LogSettings, origin: Origin) -> Supervisor:
    """Make the supervisor, after everything that may fail at a start: limits, GPUs, keys, sockets. Raises OSError,
    ShoalError."""
    passed = passed_sockets(os.environ, os.getpid())
    notifier = Notifier.take(os.environ, os.getpid())
    if origin.predecessor is not None:
        options = origin.predecessor.with_models(options)
    check_limit()
    check_process_limits()
    check_kernel()
    machine = find_machine(options, os.environ, server_cores())
    if options.cuda_mps:
        check_mps(machine)
    api_keys = read_keys(options.api_keys) if options.api_keys else None
    listeners = bind(options, passed, {} if origin.predecessor is None else origin.predecessor.take_endpoints())
    slots = {place: take_slot(place, os.environ) for place in options.model_repository if isinstance(place, CloudUrl)}
    store_slot = None if options.store is None else take_store_slot(options.store.directory, os.environ)
    return Supervisor(options, log_settings, listeners, notifier, slots, machine, store_slot, api_keys, origin)


def _pid_file(path: str, predecessor: Predecessor | None) -> PidFile | None:
    """The file for this server's pid, which names the old server until this one has taken over; None without a path.
    Raises PidFileError."""
    if not path:
        return None
    inherited = None if predecessor is None else predecessor.take_descriptor(PID_FILE)
    if inherited is not None:
        return PidFile(Path(path), inherited)
    taken = PidFile.take(Path(path))
    if taken is None:
        raise PidFileError(f"'{path}' is a running server's; give another --pid-file, or stop that server")
    taken.write(os.getpid())
    return taken
