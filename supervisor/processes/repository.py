"""The poller as the supervisor sees it: orders to the process that reads model repositories, and their results.

No call here blocks. The process is exec'd for the first order, and ends when it has had none for a while; where it
dies, or is silent for as long as a model may take to load, all open orders fail. The next order starts another process.
"""

import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from shoal import errors
from shoal.cloud_url import CloudUrl
from shoal.control import ADDRESS_VARIABLE
from shoal.errors import InternalError, ShoalError
from shoal.messages import to_poller
from shoal.messages.message import on, table
from shoal.messages.shared import LogChanged, LogSettings
from shoal.open_files import explain_start
from shoal.options import ServerOptions
from shoal.reasons import describe_exit
from shoal.repository.found import FoundModel, PollResult
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.slots import Slot
from shoal.supervisor.event_loop import EventLoop, Future, first, shared
from shoal.supervisor.processes.children import Child, spawn
from shoal.supervisor.processes.members import Member

_log = logging.getLogger(__name__)

#: A process without an order for so long ends: it takes 15 MiB, and the next one 0.3 s to start (ours).
IDLE_S = 10.0
#: How long the end of the server waits for removals (ours): no later server knows of these directories.
REMOVAL_S = 5.0

T = TypeVar("T")
#: The last answer to an order.
Answer = to_poller.Polled | to_poller.OrderDone


@dataclass(slots=True, eq=False)
class OpenOrder:
    """An open order: `read` turns its last answer and the models that were found into the result."""

    message: to_poller.Order
    read: Callable[[Answer, list[FoundModel]], Any]
    result: Future[Any]
    moved_s: float  # when the process last sent something about this order, or about an earlier one
    found: list[FoundModel] = field(default_factory=list)


class RepositoryPoller:
    """All model repositories of the server, read by one process."""

    def __init__(
        self,
        loop: EventLoop,
        options: ServerOptions,
        control_address: str,
        log_settings: LogSettings,
        slots: Mapping[CloudUrl, Slot],
        store_slot: Slot | None = None,
        gpus: Sequence[int] = (),
    ) -> None:
        self._store_slot = store_slot
        self._gpus = gpus
        self._slots = slots  # the server's locked folders for copies from clouds, which outlive the process
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
        self._answered_s = 0.0

    def start(self) -> None:
        """Start the process, which then begins its imports."""
        if self._child is None:
            environment = {ADDRESS_VARIABLE: self._control_address}
            self._child = spawn(self._loop, "repository poller", ["shoal.repository.main"], environment)
            self._loop.start(self._await_end(self._child))

    def join(self, member: Member) -> None:
        """Take in the process, which has connected, and send it the waiting orders."""
        if self._child is None or member.pid != self._child.pid:
            member.hang_up()
            return
        self._member = member
        self._answered_s = self._loop.now_s()
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
                store=None if options.store is None else options.store.fields,
                store_work="" if self._store_slot is None else str(self._store_slot.directory / str(os.getpid())),
                gpus=list(self._gpus),
            )
        )
        for order in self._orders.values():
            member.send(order.message)

    def forget(self, keep: Collection[Path]) -> None:
        """Order the removal of copies from cloud storage, except of those that versions still need."""
        if self._slots and self._member is not None:
            self._member.send(to_poller.Forget([str(directory) for directory in keep]))

    async def close(self) -> None:
        """Kill the process once the directories that were made for loads are removed, or that takes too long."""
        end_s = self._loop.now_s() + REMOVAL_S
        while (left_s := end_s - self._loop.now_s()) > 0:
            orders = [each for each in self._orders.values() if isinstance(each.message, to_poller.Discard)]
            if not orders:
                break
            await first(orders[0].result, limit_s=left_s)
        self.stop()

    def stop(self) -> None:
        """Kill the process; open orders fail."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    # --- questions ---

    def poll(self, names: Collection[str] | None, patience_s: float | None = None) -> Future[PollResult]:
        """A poll of all models; only those in `names` (None: all) are read. With `patience_s`, models whose copy from a
        cloud takes longer are left to a later poll."""
        order = to_poller.Poll(next(self._numbers), None if names is None else list(names), patience_s)
        return self._order(order, _read_poll)

    def look_all(
        self, name: str, *, config: str | None = None, directory: str | None = None, repository: str | None = None
    ) -> Future[list[FoundModel]]:
        """The models of a name, with what a load request brings along (poll.py's Override)."""
        order = to_poller.LookAll(next(self._numbers), name, config, directory, repository)
        return self._order(order, lambda _answer, found: found)

    def look(self, name: str, *, preferred: str = "") -> Future[FoundModel | None]:
        """The model of a name, of several that of the `preferred` namespace; None where there is none."""
        order = to_poller.Look(next(self._numbers), name, preferred)
        return self._order(order, lambda _answer, found: found[0] if found else None)

    def look_at(self, found: FoundModel) -> Future[FoundModel]:
        """A model as its directory is now; a configuration that came with a request is kept."""
        config = json.dumps(found.config) if found.is_given else None
        order = to_poller.LookAt(next(self._numbers), *found.identifier, str(found.directory), config)
        return self._order(order, lambda _answer, models: replace(models[0], is_given=found.is_given))

    def load_store(self) -> Future[list[FoundModel]]:
        """The models that TorchServe's store loads at start, each with one version, of the number 1."""
        return self._order(to_poller.LoadStore(next(self._numbers)), lambda _answer, found: found)

    def register(self, request: Mapping[str, Any]) -> Future[FoundModel]:
        """The model that a registration means; `request` has fields of StoreRequest (repository/torchserve)."""
        order = to_poller.Register(next(self._numbers), dict(request))
        return self._order(order, lambda _answer, found: found[0])

    def look_again(self, request: Mapping[str, Any], modified_ns: int) -> Future[FoundModel | None]:
        """The model that a registration means, if its archive has changed since; None if not."""
        order = to_poller.LookAgain(next(self._numbers), dict(request), modified_ns)
        return self._order(order, lambda _answer, found: found[0] if found else None)

    def withdraw(self, directory: Path, archive: str) -> None:
        """Order the removal of an unpacked archive, and of a downloaded one from the store."""
        order = to_poller.Withdraw(next(self._numbers), str(directory), archive)
        self._loop.start(_log_refusal(self._order(order, lambda _answer, _found: None)))

    def register_workflow(self, request: Mapping[str, Any]) -> Future[tuple[Mapping[str, Any], list[FoundModel]]]:
        """The workflow that a registration means, and the models of its nodes; `request` has fields of WorkflowRequest
        (repository/torchserve)."""
        order = to_poller.RegisterWorkflow(next(self._numbers), dict(request))
        return self._order(order, _read_workflow)

    def withdraw_workflow(self, directory: str, archive: str) -> None:
        """Order the removal of an unpacked workflow, and of a downloaded archive of one."""
        order = to_poller.WithdrawWorkflow(next(self._numbers), directory, archive)
        self._loop.start(_log_refusal(self._order(order, lambda _answer, _found: None)))

    def save_snapshot(self, name: str, models: str) -> Future[None]:
        """Order a snapshot of the configuration of TorchServe's store, under this file name; `models` is JSON."""
        order = to_poller.SaveSnapshot(next(self._numbers), name, models)
        return self._order(order, lambda _answer, _found: None)

    def discard(self, directory: Path) -> None:
        """Order the removal of a directory that was made for one load."""
        order = to_poller.Discard(next(self._numbers), str(directory))
        self._loop.start(_log_refusal(self._order(order, lambda _answer, _found: None)))

    def configure_log(self) -> None:
        if self._member is not None:
            self._member.send(LogChanged(self._log_settings))

    def _order(self, message: to_poller.Order, read: Callable[[Answer, list[FoundModel]], T]) -> Future[T]:
        """Send an order; the future has its result later, or a ShoalError where the repositories cannot be read."""
        result: Future[T] = self._loop.future()
        try:
            self.start()
        except OSError as error:
            refusal = InternalError(
                f"the process that reads model repositories cannot be started: {explain_start(error)}"
            )
            result.set_exception(refusal)
            return result
        order = self._orders[message.order] = OpenOrder(message, read, result, self._loop.now_s())
        if self._member is not None:
            self._member.send(message)
        self._loop.start(self._watch(order))
        return result

    async def _watch(self, order: OpenOrder) -> None:
        """Kill the process if it is silent for too long about an order and those before it; each model that it finds
        for one of them breaks silence."""
        result, limit_s = order.result, self._options.model_load_timeout_secs
        while not result.done():
            patience_s = order.moved_s + limit_s - self._loop.now_s()
            if patience_s <= 0:
                sentence = (
                    "the reader of model repositories was silent for %d s (--model-load-timeout-secs); it is killed"
                )
                _log.error(sentence, limit_s)
                self.stop()
                return
            await first(result, limit_s=patience_s)

    # --- answers ---

    def _on_found(self, answer: to_poller.ModelFound) -> None:
        self._note_move(answer.order)
        if answer.order in self._orders:
            self._orders[answer.order].found.append(FoundModel.from_message(answer))

    def _note_move(self, number: int) -> None:
        for each, order in self._orders.items():
            if each >= number:
                order.moved_s = self._loop.now_s()

    def _on_done(self, answer: Answer) -> None:
        self._answered(answer.order)
        order = self._orders.get(answer.order)
        result = None if order is None else order.read(answer, order.found)  # an error ends the process: it fails, too
        self._orders.pop(answer.order, None)
        if order is not None and not order.result.done():
            order.result.set_result(result)

    def _answered(self, number: int) -> None:
        """Note the process's last answer to an order, and end the process if no other order comes for a while."""
        self._note_move(number)
        self._answered_s = self._loop.now_s()
        if not self._is_kept:
            self._loop.call_after(IDLE_S, self._end_if_idle)

    @property
    def _is_kept(self) -> bool:
        """Whether the process is kept without orders: it has a slot for copies from a cloud, or polls repositories."""
        options = self._options
        return bool(self._slots) or (options.model_control_mode == "poll" and options.repository_poll_secs > 0)

    def _end_if_idle(self) -> None:
        if self._orders or self._member is None or self._loop.now_s() - self._answered_s < IDLE_S:
            return
        self._member.hang_up()  # which ends the process
        self._child = self._member = None

    def _on_refused(self, answer: to_poller.OrderRefused) -> None:
        self._answered(answer.order)
        self._refuse(answer.order, errors.from_wire(answer.wire, answer.sentence))

    def _refuse(self, number: int, error: ShoalError) -> None:
        if (order := self._orders.pop(number, None)) is not None and not order.result.done():
            order.result.set_exception(error)

    async def _await_end(self, child: Child) -> None:
        code = await shared(child.exited)
        if child is not self._child:
            return
        if self._member is not None:
            self._member.hang_up()
        self._child = self._member = None
        sentence = f"the process that reads model repositories (pid {child.pid}) {describe_exit(code)}"
        for number in tuple(self._orders):
            self._refuse(number, InternalError(sentence))


def _read_poll(answer: Answer, found: list[FoundModel]) -> PollResult:
    assert isinstance(answer, to_poller.Polled)
    problems = {ModelIdentifier(*identifier): reason for identifier, reason in answer.problems}
    identifiers = tuple(ModelIdentifier(*identifier) for identifier in answer.identifiers)
    return PollResult({model.identifier: model for model in found}, problems, identifiers)


def _read_workflow(answer: Answer, found: list[FoundModel]) -> tuple[Mapping[str, Any], list[FoundModel]]:
    assert isinstance(answer, to_poller.OrderDone)
    assert answer.about is not None
    return answer.about, found


async def _log_refusal(result: Future[None]) -> None:
    try:
        await result
    except ShoalError as error:
        _log.error("%s", error)
