"""An upgrade as the new server sees it: the old server, its sockets, and the models and settings that requests have
changed there since its start.

    connect ─► the old server's state ─► models load ─► `settle`: the old server agrees ─► front ends listen
    ─► `take_over`: this is the server now ─► the old one answers what it has accepted, and ends

Until it has taken over, this process is the old server's child and dies with it; it waits for the old server without a
time limit, since the old server's own limit ends it. Runs in the supervisor.
"""

import json
import logging
import os
import select
import socket
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shoal import control
from shoal.control import GONE, Channel
from shoal.messages import upgrade as messages
from shoal.messages.message import Message, MessageError
from shoal.messages.to_client import RegionChange
from shoal.options import ServerOptions
from shoal.process import die_with_parent, outlive_parent
from shoal.repository import override_files
from shoal.supervisor.event_loop import EventLoop, Future, first, resolve, shared
from shoal.supervisor.upgrade.launch import DESCRIPTORS_VARIABLE, VARIABLE
from shoal.version import __version__

_log = logging.getLogger(__name__)

#: The names of descriptors that are no endpoint's: the socket of shoal.Client, and the file with the server's pid.
CLIENT_SOCKET, PID_FILE = "client-socket", "pid-file"
#: Seconds within which an old server must send its state, if its version does not send a limit of its own (ours).
FIRST_MESSAGE_S = 30.0


class UpgradeFailedError(Exception):
    """The old server does not go on with the upgrade."""


class Predecessor:
    """The old server's connection. Descriptors by name belong to those who take them (`take_socket`). `takes_regions`:
    the old server knows the messages of `send_region`; earlier versions do not."""

    def __init__(
        self,
        pid: int,
        channel: Channel,
        descriptors: Mapping[str, int],
        models: messages.ModelsCarried,
        *,
        takes_regions: bool,
    ) -> None:
        self.pid = pid
        self.models = models
        # Changed by _adopt and release: the models whose configuration or files came with a request, and the locks of
        # these files.
        self.given = list(models.given)
        self._locks: list[int] = []
        self._channel = channel
        self._takes_regions = takes_regions
        # Changed by take_socket and watch, and as messages come.
        self._descriptors = dict(descriptors)
        self.has_ended = False
        self._received: dict[type[Message], Future[Any]] = {}  # by type, a message that is awaited or has come
        self._gone: list[Future[None]] = []  # one, from `watch` on: done when the connection has ended

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> "Predecessor | None":
        """The old server whose place this process is to take, connected; None where there is none. Removes the
        variables that name the old server from `environ`. Raises UpgradeFailedError."""
        text, fds = environ.pop(VARIABLE, ""), environ.pop(DESCRIPTORS_VARIABLE, "")
        if not text:
            return None
        said = json.loads(text)
        die_with_parent(said["pid"])
        descriptors = dict(zip(said["names"], map(int, filter(None, fds.split(","))), strict=True))
        for fd in descriptors.values():
            os.set_inheritable(fd, False)
        try:
            channel = control.join(messages.NewServerConnected(__version__), said["address"])
            limit_s = said.get("limit_s", FIRST_MESSAGE_S)  # the old server may first wait for loads
            if not select.select([channel], [], [], limit_s)[0]:
                raise TimeoutError(f"it has sent nothing for {limit_s:g} s")
            models, _ = channel.receive(messages.FIRST_TO_NEW_SERVER)
        except (*GONE, OSError, MessageError) as error:
            raise UpgradeFailedError(f"the old server, process {said['pid']}, does not answer: {error}") from error
        predecessor = cls(said["pid"], channel, descriptors, models, takes_regions="takes_regions" in said)
        predecessor._adopt()
        return predecessor

    def _adopt(self) -> None:
        """Adopt the old server's copies of files that came with loads, before anything else is begun: a copy that was
        not adopted stays on disk for ever if both servers are killed, since no sweep removes it (override_files.py)."""
        for position, (name, config, copy) in enumerate(self.given):
            with suppress(OSError):  # the load logs the error
                if copy is not None:
                    adopted, lock = override_files.adopt(copy)
                    self.given[position] = name, config, adopted
                    self._locks.append(lock)

    def release(self) -> None:
        """Unlock the copies: the loads have locked those that they need."""
        while self._locks:
            os.close(self._locks.pop())

    def take_descriptor(self, name: str) -> int | None:
        """The old server's descriptor of this name, which the caller owns from now on; None where it has none."""
        return self._descriptors.pop(name, None)

    def take_socket(self, name: str) -> socket.socket | None:
        """The old server's socket of this name, which the caller owns from now on; None where it has none."""
        fd = self.take_descriptor(name)
        return None if fd is None else socket.socket(fileno=fd)

    def take_endpoints(self) -> dict[str, socket.socket]:
        """The old server's sockets for endpoints, by name, which the caller owns from now on."""
        names = [name for name in self._descriptors if name not in (CLIENT_SOCKET, PID_FILE)]
        return {name: socket.socket(fileno=self._descriptors.pop(name)) for name in names}

    def with_models(self, options: ServerOptions) -> ServerOptions:
        """The options for a start with the models that the old server serves, in control mode explicit."""
        if self.models.names is None or options.model_control_mode != "explicit":
            return options
        return replace(options, load_model=tuple(self.models.names))

    def watch(
        self,
        loop: EventLoop,
        on_region: Callable[[RegionChange], Future[None]],
        lost: Future[None],
        is_ending: Callable[[], bool],
    ) -> None:
        """Receive the old server's messages from now on. `on_region` applies a change of clients' regions; `lost` is
        resolved where the old server ends before this one has taken over. If `is_ending` says, when the old server
        hands over (TakeOver), that this one is ending, this one does not take over: the old one goes on once
        this one has ended."""
        kinds = messages.SettingsCarried, messages.TakeOver, messages.MainProcessNamed
        self._received, self._gone = {kind: loop.future() for kind in kinds}, [loop.future()]
        self._channel.setblocking(False)

        def receive() -> None:
            try:
                message, seq = self._channel.receive(messages.TO_NEW_SERVER)
            except BlockingIOError:
                return
            except (*GONE, OSError, MessageError):
                loop.forget(self._channel.fileno())
                self._channel.close()
                self.has_ended = True
                resolve(self._gone[0], None)
                if self.is_the_server:
                    _log.error("the old server has ended before this one has taken over")
                    resolve(lost, None)
                return
            if isinstance(message, RegionChange):
                loop.after(on_region(message), lambda: self._send(None, seq))
            elif not (isinstance(message, messages.TakeOver) and is_ending()):
                if isinstance(message, messages.TakeOver):
                    outlive_parent()  # before the acknowledgement, after which the old server may end
                resolve(self._received[type(message)], message)
                self._send(None, seq)

        loop.on_readable(self._channel.fileno(), receive)

    def _send(self, message: Message | None, seq: int = 0) -> None:
        if self.has_ended:
            return
        try:
            if message is None:
                self._channel.acknowledge(seq)
            else:
                self._channel.send(message)
        except OSError:
            return  # the connection has ended: `receive` of `watch` is about to read that

    async def settle(self, serving: list[tuple[str, int]]) -> messages.SettingsCarried:
        """Report the versions that this server could serve. Once the old server agrees, returns its settings that
        requests have changed, with which this server is to begin."""
        self._send(messages.ModelsSettled(serving))
        settings: messages.SettingsCarried = await shared(self._received[messages.SettingsCarried])
        return settings

    async def take_over(self) -> None:
        """Report that this server answers; returns when it has taken over, is the service manager's main process, and
        no longer dies with the old one."""
        self._send(messages.NewServerServes())
        await shared(self._received[messages.TakeOver])
        await first(self._received[messages.MainProcessNamed], *self._gone)

    @property
    def is_the_server(self) -> bool:
        """Whether the old server is the server still: this one has not taken over."""
        return not (self._received and self._received[messages.TakeOver].done())

    def send_region(self, message: RegionChange) -> None:
        """Report a change of clients' regions, which the old server needs if this one does not take over; no effect
        where the old server is of a version that would end the upgrade at the message."""
        if self._takes_regions and self.is_the_server:
            self._send(message)

    def fail(self, reason: str) -> None:
        self._send(messages.NewServerFails(reason))

    async def await_end(self, limit_s: float) -> None:
        """Return when the old server has ended, or after `limit_s`; at once where this one has not taken over."""
        if not self.is_the_server:
            await first(*self._gone, limit_s=limit_s)
