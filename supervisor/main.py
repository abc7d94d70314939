"""The entry point of the supervisor's process: its log, title and sockets, the machine's resources; then it serves."""

import faulthandler
import logging
import os

from shoal import log
from shoal.cloud_url import CloudUrl
from shoal.errors import ShoalError
from shoal.messages.shared import LogSettings
from shoal.options import ServerOptions
from shoal.process import set_title
from shoal.repository.cloud_cache import take_slot
from shoal.repository.slots import take_store_slot
from shoal.supervisor.descriptors import check_limit, raise_limit
from shoal.supervisor.key_file import read_keys
from shoal.supervisor.machine import find_machine, server_cores
from shoal.supervisor.notify import Notifier
from shoal.supervisor.processes.listeners import bind, passed_sockets
from shoal.supervisor.supervisor import EXIT_FAILED, Supervisor

_log = logging.getLogger(__name__)


def run(options: ServerOptions) -> int:
    """Serve until a signal ends it; returns the exit code."""
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
    # The last word is how SageMaker's toolkit finds TorchServe's process.
    set_title("supervisor" + " org.pytorch.serve.ModelServer" * options.allow_torchserve)
    raise_limit()
    faulthandler.enable()  # systemd's watchdog ends a server with SIGABRT: the journal then has the supervisor's stack
    passed = passed_sockets(os.environ, os.getpid())
    notifier = Notifier.take(os.environ, os.getpid())
    try:
        check_limit()
        machine = find_machine(options, os.environ, server_cores())
        api_keys = read_keys(options.api_keys) if options.api_keys else None
        listeners = bind(options, passed)
        slots = {
            place: take_slot(place, os.environ) for place in options.model_repository if isinstance(place, CloudUrl)
        }
        store_slot = None if options.store is None else take_store_slot(options.store.directory, os.environ)
    except (OSError, ShoalError) as error:
        _log.error("%s", error)
        return EXIT_FAILED
    return Supervisor(options, log_settings, listeners, notifier, slots, machine, store_slot, api_keys).run()
