"""The model repositories as the supervisor sees them: what it asks the process that reads them, and what comes back.

Nothing here blocks. The process is exec'd when it is first asked; where it dies, or is silent for as long as a model
may take to load, whatever was asked fails, and the next question starts another.
"""

import itertools
import logging
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from shoal import errors
from shoal.cloud_url import CloudUrl
from shoal.control import ADDRESS_VARIABLE
from shoal.errors import InternalError, ShoalError
from shoal.messages import to_poller
from shoal.messages.message import on, table
from shoal.messages.shared import LogChanged
from shoal.options import ServerOptions
from shoal.reasons import describe_exit
from shoal.repository.cloud_cache import Slot
from shoal.repository.found import FoundModel, Poll
from shoal.repository.identifier import ModelIdentifier
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.failure_domains import bound
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.members import Member

_log = logging.getLogger(__name__)

Failed = Callable[[ShoalError], None]
#: What an order's last answer says, and the models that it has found.
Done = Callable[[to_poller.Polled | to_poller.OrderDone, list[FoundModel]], None]


class OpenOrder:
    """An order, until it is answered."""

    def __init__(self, message: to_poller.Order, on_done: Done, on_failed: Failed) -> None:
        self.message = message
        # In the failure domain of the code that asks.
        self.on_done = bound(on_done)
        self.on_failed = bound(on_failed)
        self.found: list[FoundModel] = []


class Repository:
    """All repositories of the server together."""

    def __init__(
        self,
        loop: EventLoop,
        options: ServerOptions,
        control_address: str,
        log_settings: dict[str, Any],
        slots: Mapping[CloudUrl, Slot],
    ) -> None:
        self._slots = slots  # held for as long as we live, whatever happens to the process
        self._loop = loop
        self._options = options
        self._control_address = control_address
        self._log_settings = log_settings
        self._numbers = itertools.count(1)
        self.handlers = table(
            on(to_poller.ModelFound, self._on_found),
            on(to_poller.Polled, self._on_done),
            on(to_poller.OrderDone, self._on_done),
            on(to_poller.OrderRefused, self._on_refused),
        )
        # Changed by orders, answers and the process's end.
        self._child: Child | None = None
        self._member: Member | None = None
        self._orders: dict[int, OpenOrder] = {}
        self._heard_s = 0.0

    def start(self) -> None:
        """Have the process begin its imports."""
        if self._child is None:
            environment = {ADDRESS_VARIABLE: self._control_address}
            self._child = spawn(self._loop, "repository poller", ["shoal.repository.main"], environment)
            self._child.watch(self._exited)

    def join(self, member: Member) -> None:
        """The process has connected: it gets what has been asked meanwhile."""
        self._member = member
        self._heard_s = self._loop.now_s()
        member.listen(self.handlers)
        options = self._options
        member.send(
            to_poller.PollerWelcomed(
                log=self._log_settings,
                repositories=[
                    (str(place), None if isinstance(place, Path) else str(self._slots[place].directory))
                    for place in options.model_repository
                ],
                strict=options.disable_auto_complete_config,
                config_name=options.model_config_name,
                namespacing=options.model_namespacing,
                backend_directory=options.backend_directory,
            )
        )
        for order in self._orders.values():
            member.send(order.message)

    def forget(self, keep: Collection[Path]) -> None:
        """Have the copies from cloud storage removed that nobody needs any more."""
        if self._slots and self._member is not None:
            self._member.send(to_poller.Forget([str(directory) for directory in keep]))

    def stop(self) -> None:
        """End the process; nobody asks any more."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    # --- questions ---

    def poll(self, names: Collection[str] | None, then: Callable[[Poll], None], failed: Failed) -> None:
        """Every model there is; only `names`, or all, are looked into."""

        def polled(answer: to_poller.Polled | to_poller.OrderDone, found: list[FoundModel]) -> None:
            assert isinstance(answer, to_poller.Polled)
            problems = {ModelIdentifier(*identifier): reason for identifier, reason in answer.problems}
            identifiers = tuple(ModelIdentifier(*identifier) for identifier in answer.identifiers)
            then(Poll({model.identifier: model for model in found}, problems, identifiers))

        self._order(to_poller.Poll(next(self._numbers), None if names is None else list(names)), polled, failed)

    def look_all(
        self,
        name: str,
        then: Callable[[list[FoundModel]], None],
        failed: Failed,
        *,
        config: str | None = None,
        directory: str | None = None,
        repository: str | None = None,
    ) -> None:
        """Find the models of a name, with what a load request brings along (poll.py's Override)."""
        order = to_poller.LookAll(next(self._numbers), name, config, directory, repository)
        self._order(order, lambda _answer, found: then(found), failed)

    def look(
        self, name: str, then: Callable[[FoundModel | None], None], failed: Failed, *, preferred: str = ""
    ) -> None:
        """Find a model by its name, of several the one of the `preferred` namespace; `then` gets None for none."""

        order = to_poller.Look(next(self._numbers), name, preferred)
        self._order(order, lambda _answer, found: then(found[0] if found else None), failed)

    def discard(self, directory: Path) -> None:
        """Have a directory removed that was made for one load."""
        self._order(to_poller.Discard(next(self._numbers), str(directory)), lambda _answer, _found: None, _log_failure)

    def configure_log(self) -> None:
        """The settings of the log have changed."""
        if self._member is not None:
            self._member.send(LogChanged(self._log_settings))

    def _order(self, message: to_poller.Order, on_done: Done, on_failed: Failed) -> None:
        number = message.order
        self._orders[number] = OpenOrder(message, on_done, on_failed)
        try:
            self.start()
        except OSError as error:
            del self._orders[number]
            on_failed(InternalError(f"the process that reads model repositories cannot be started: {error}"))
            return
        if self._member is not None:
            self._member.send(message)
        self._check_answered(number, self._loop.now_s())

    # --- answers ---

    def _on_found(self, answer: to_poller.ModelFound) -> None:
        self._heard_s = self._loop.now_s()
        if answer.order in self._orders:
            self._orders[answer.order].found.append(FoundModel.from_message(answer))

    def _on_done(self, answer: to_poller.Polled | to_poller.OrderDone) -> None:
        self._heard_s = self._loop.now_s()
        if (order := self._orders.pop(answer.order, None)) is not None:
            order.on_done(answer, order.found)

    def _on_refused(self, answer: to_poller.OrderRefused) -> None:
        self._heard_s = self._loop.now_s()
        if (order := self._orders.pop(answer.order, None)) is not None:
            order.on_failed(errors.from_wire(answer.wire, answer.sentence))

    def _check_answered(self, number: int, asked_s: float) -> None:
        """Whoever is silent for too long is killed; each model that was found is a sign of life."""
        if number not in self._orders or self._child is None:
            return
        patience_s = max(asked_s, self._heard_s) + self._options.model_load_timeout_secs - self._loop.now_s()
        if patience_s > 0:
            self._loop.call_after(patience_s, lambda: self._check_answered(number, asked_s))
            return
        _log.error(
            "the reader of model repositories was silent for %d s (--model-load-timeout-secs); it is killed",
            self._options.model_load_timeout_secs,
        )
        self._child.signal(signal.SIGKILL)

    def _exited(self, child: Child, code: int) -> None:
        if self._member is not None:
            self._member.hang_up()
        self._child = self._member = None
        orders, self._orders = self._orders, {}
        for order in orders.values():
            sentence = f"the process that reads model repositories (pid {child.pid}) {describe_exit(code)}"
            order.on_failed(InternalError(sentence))


def _log_failure(error: ShoalError) -> None:
    _log.error("%s", error)
