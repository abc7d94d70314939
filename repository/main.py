"""The poller: the process that reads model repositories, so that the supervisor waits for no disk, network or parser.

Exec'd as `python -m shoal.repository.main` when first needed, and exits 0 when the supervisor closes the connection.
Orders that read repositories or archives, which may lie in a cloud, are answered in threads, in lines (lines.py): there
is a line for the index, one for polls, one for the store, and one for each model or archive. Orders that only remove or
write local files are answered at once, in the order in which they came. The poller imports protobuf, which reads
config.pbtxt, so that the supervisor need not. Orders and answers are in shoal/messages/to_poller.py.
"""

import logging
import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import log
from shoal.cloud_url import CloudUrl
from shoal.control import GONE, Channel
from shoal.errors import InternalError, ShoalError
from shoal.messages import to_poller
from shoal.messages.message import Kinds, Message, on, table
from shoal.messages.shared import LogChanged
from shoal.process_start import join_supervisor
from shoal.repository import override_files
from shoal.repository.cloud import CloudRepository
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lines import Lines
from shoal.repository.poll import Override, Repositories
from shoal.store_settings import StoreSettings
from shoal.torchserve_errors import torchserve_error

if TYPE_CHECKING:
    from shoal.repository.torchserve.store import TorchServeStore

# Not __name__, which is __main__ in a module run with -m: only loggers below "shoal" are configured.
_log = logging.getLogger("shoal.repository.main")

#: Type of an order that may take long → the function that names the order's line. No two lines have the same name.
_LINES: Mapping[type[Message], Callable[[Any], str]] = {
    to_poller.Poll: lambda order: "polls" if order.names is None or order.names else "the index",
    to_poller.Look: lambda order: f"model {order.name}",
    to_poller.LookAll: lambda order: f"model {order.name}",
    to_poller.LookAt: lambda order: f"model {order.name}",
    to_poller.LoadStore: lambda _order: "the store",
    to_poller.Register: lambda order: f"archive {order.request.get('url')}",
    to_poller.RegisterWorkflow: lambda order: f"archive {order.request.get('url')}",
    to_poller.LookAgain: lambda order: f"archive {order.request.get('url')}",
}


class Poller:
    """Answers the supervisor's orders."""

    def __init__(self, channel: Channel, repositories: Repositories, store: "TorchServeStore | None" = None) -> None:
        self._channel = channel
        self._repositories = repositories
        self._store = store
        # Polls have lines of their own: orders about models may occupy all LINES_AT_ONCE threads of the other set.
        self._polls, self._lines = Lines(self._work_on), Lines(self._work_on)
        self.handlers = table(
            on(to_poller.Poll, self._poll),
            on(to_poller.Look, self._look),
            on(to_poller.LookAll, self._look_all),
            on(to_poller.LookAt, self._look_at),
            on(to_poller.LoadStore, self._load_store),
            on(to_poller.Register, self._register),
            on(to_poller.RegisterWorkflow, self._register_workflow),
            on(to_poller.WithdrawWorkflow, self._withdraw_workflow),
            on(to_poller.LookAgain, self._look_again),
            on(to_poller.Withdraw, self._withdraw),
            on(to_poller.SaveSnapshot, self._save_snapshot),
            on(to_poller.Discard, self._discard),
            on(to_poller.Forget, self._forget),
            on(LogChanged, lambda message: log.configure(**message.settings)),
        )

    def run(self) -> None:
        """Answer orders until the supervisor closes the connection; then raises EOFError."""
        kinds = Kinds(*self.handlers)
        while True:
            message, _ = self._channel.receive(kinds)
            self._handle(self._line_up if type(message) in _LINES else self.handlers[type(message)], message)

    def _line_up(self, order: Message) -> None:
        lines = self._polls if isinstance(order, to_poller.Poll) else self._lines
        lines.add(_LINES[type(order)](order), order)

    def _work_on(self, order: Message) -> None:
        self._handle(self.handlers[type(order)], order)

    def _handle(self, handler: Callable[[Any], object], message: Message) -> None:
        try:
            handler(message)
        except Exception as error:  # noqa: BLE001 - one failed order must not end the poller
            if isinstance(error, GONE) and self._channel.is_hung_up():
                return  # `run` is about to raise EOFError
            if not isinstance(error, ShoalError):
                _log.exception("no answer to an order of the supervisor: %s", type(message).__name__)
                error = InternalError(f"an error of the server's own, {type(error).__name__}: {error}")
            if isinstance(message, to_poller.Order):
                with suppress(*GONE):
                    self._channel.send(to_poller.OrderRefused(message.order, error.wire, str(error)))

    def _poll(self, order: to_poller.Poll) -> None:
        models, problems = self._repositories.scan()
        wanted = order.names
        places = {each: place for each, place in models.items() if wanted is None or each.name in wanted}
        polled = to_poller.Polled(order.order, [*models, *problems], list(problems.items()))
        self._answer(order, self._repositories.look_at_each(places, patience_s=order.patience_s), polled)

    def _look_all(self, order: to_poller.LookAll) -> None:
        directory, repository = (Path(place) if place else None for place in (order.directory, order.repository))
        self._answer(order, self._repositories.look_all(order.name, Override(order.config, directory, repository)))

    def _look(self, order: to_poller.Look) -> None:
        found = self._repositories.look(order.name, preferred=order.preferred)
        self._answer(order, [] if found is None else [found])

    def _look_at(self, order: to_poller.LookAt) -> None:
        identifier, directory = ModelIdentifier(order.name, order.namespace), Path(order.directory)
        self._answer(order, [self._repositories.look_at(identifier, directory, order.config, mapped=True)])

    def _load_store(self, order: to_poller.LoadStore) -> None:
        self._answer(order, [] if self._store is None else self._store.load_at_start())

    def _register(self, order: to_poller.Register) -> None:
        from shoal.repository.torchserve.configuration import StoreRequest

        if self._store is None:
            raise torchserve_error(404, "ModelNotFoundException", "Model store has not been configured.")
        self._answer(order, [self._store.register(StoreRequest(**order.request))])

    def _register_workflow(self, order: to_poller.RegisterWorkflow) -> None:
        from shoal.repository.torchserve.workflow_store import WorkflowRequest, register_workflow

        if self._store is None:
            raise torchserve_error(404, "WorkflowNotFoundException", "Workflow store has not been configured.")
        found = register_workflow(self._store, WorkflowRequest(**order.request))
        self._answer(order, found.models, to_poller.OrderDone(order.order, dict(found.about)))

    def _withdraw_workflow(self, order: to_poller.WithdrawWorkflow) -> None:
        from shoal.repository.torchserve.workflow_store import withdraw_workflow

        if self._store is not None:
            withdraw_workflow(self._store, Path(order.directory), order.archive)
        self._answer(order)

    def _look_again(self, order: to_poller.LookAgain) -> None:
        from shoal.repository.torchserve.configuration import StoreRequest

        found = (
            None if self._store is None else self._store.look_again(StoreRequest(**order.request), order.modified_ns)
        )
        self._answer(order, [] if found is None else [found])

    def _withdraw(self, order: to_poller.Withdraw) -> None:
        if self._store is not None:
            self._store.withdraw(Path(order.directory), order.archive)
        self._answer(order)

    def _save_snapshot(self, order: to_poller.SaveSnapshot) -> None:
        if self._store is not None:
            self._store.save_snapshot(order.name, order.models)
        self._answer(order)

    def _discard(self, order: to_poller.Discard) -> None:
        shutil.rmtree(order.directory, ignore_errors=True)
        self._answer(order)

    def _forget(self, message: to_poller.Forget) -> None:
        self._repositories.forget([Path(directory) for directory in message.keep])

    def _answer(self, order: to_poller.Order, models: Iterable[FoundModel] = (), done: Message | None = None) -> None:
        for found in models:
            self._channel.send(found.message(order.order))
        self._channel.send(done or to_poller.OrderDone(order.order))


def _store(welcome: to_poller.PollerWelcomed) -> "TorchServeStore | None":
    """TorchServe's store; None, and its modules are not imported, where the server has none."""
    if welcome.store is None:
        return None
    from shoal.repository.torchserve.configuration import Machine
    from shoal.repository.torchserve.store import TorchServeStore

    machine = Machine(len(os.sched_getaffinity(0)), tuple(welcome.gpus))
    store = TorchServeStore(StoreSettings.from_fields(welcome.store), Path(welcome.store_work), machine)
    store.clean()
    return store


def main() -> int:
    """Run the process; returns its exit status."""
    joined = join_supervisor("repository poller", to_poller.PollerConnected(), to_poller.POLLER_WELCOME)
    if joined is None:
        return 0
    supervisor, welcome = joined
    override_files.sweep()
    with supervisor, suppress(*GONE):
        sources = [
            Path(place) if slot is None else CloudRepository(CloudUrl.parse(place), Path(slot), os.environ)
            for place, slot in welcome.repositories
        ]
        repositories = Repositories(
            sources, welcome.strict, welcome.config_name, welcome.namespacing, Path(welcome.backend_directory)
        )
        Poller(supervisor, repositories, _store(welcome)).run()
    return 0


if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except BaseException:  # noqa: BLE001 - the process ends, and prints why
        traceback.print_exc()
    os._exit(status)  # threads that still fetch models are not waited for
