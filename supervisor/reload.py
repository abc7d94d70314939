"""Files that a server reads again while it runs: on SIGHUP all that can be; keys and certificates when they change.
Runs in the supervisor.

A file that is broken changes nothing: the contents read before stay in force, and the log says so.
"""

import logging
from collections.abc import Callable

from shoal.options import ServerOptions
from shoal.supervisor.certificates import Certificates
from shoal.supervisor.event_loop import EventLoop, gather
from shoal.supervisor.key_file import KeyFile
from shoal.supervisor.questions.log_settings import LogControl
from shoal.supervisor.watched_files import WatchedFiles

_log = logging.getLogger(__name__)

#: The end of the line for SIGHUP: settings that only a new start changes.
_NOT_READ = (
    "not read again: the command line, the environment, the listeners and their number of processes; start the server "
    "again for those (docs/operations.md)"
)


class Reload:
    """The watched files of a server, and its reaction to SIGHUP.

    `poll` has the repositories read now, and returns false where the server does not follow them.
    """

    def __init__(
        self,
        loop: EventLoop,
        options: ServerOptions,
        certificates: Certificates,
        key_file: KeyFile,
        log_control: LogControl,
        poll: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._options = options
        self._certificates = certificates
        self._log_control = log_control
        self._log_settings = log_control.settings.copy()  # those of the command line, in force again after SIGHUP
        self._poll = poll
        self._keys = WatchedFiles(loop, [options.api_keys], key_file.read)

    def watch(self) -> None:
        """Look at the files from now on."""
        self._keys.watch()
        self._certificates.watch()

    def on_hup(self) -> None:
        """Read all these files again, and log which could be read."""
        self._loop.start(self._log_control.change({"changes": self._log_settings}))
        self._loop.start(self._read_again(polls=self._poll()))

    async def _read_again(self, *, polls: bool) -> None:
        has_keys, has_certificates = await gather(self._keys.reload(), self._certificates.reload())
        done = ["log settings (those of the command line)"]
        done += ["API keys"] * bool(self._options.api_keys and has_keys)
        done += ["certificates"] * bool(self._certificates and has_certificates)
        if polls:
            done.append("repositories")
            left = _NOT_READ
        else:
            mode = self._options.model_control_mode
            left = f"models are loaded by request (--model-control-mode={mode}); {_NOT_READ}"
        _log.info("SIGHUP: read again: %s; %s", ", ".join(done), left)
