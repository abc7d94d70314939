"""The process that reads model repositories, so that the supervisor never waits for a disk, a network or a parser.

Exec'd as `python -m shoal.repository.main` when it is first needed. It answers one order after the other, and exits 0
when the supervisor hangs up. Also the only process that imports protobuf.

    poll ─► found, found, … polled        look_all (of one name) ─► found, … looked        look ─► looked
    discard (a directory made for one load) ─► discarded
"""

import faulthandler
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from shoal import control, log
from shoal.cloud_url import CloudUrl
from shoal.control import GONE, Channel, Message
from shoal.errors import ShoalError
from shoal.process import die_with_parent, ignore_group_signals, set_title
from shoal.repository.cloud import CloudRepository
from shoal.repository.poll import Override, Repositories


class Poller:
    """Answers the supervisor's orders."""

    def __init__(self, channel: Channel, repositories: Repositories) -> None:
        self._channel = channel
        self._repositories = repositories
        self._on: dict[str, Callable[[Message], None]] = {
            "poll": self._poll,
            "look": self._look,
            "look_all": self._look_all,
            "discard": self._discard,
            "forget": self._forget,
            "log": lambda order: log.configure(**order["log"]),
        }

    def run(self) -> None:
        """Serve until the supervisor hangs up, which raises EOFError."""
        while True:
            order, _ = self._channel.receive()
            try:
                self._on[order["op"]](order)
            except ShoalError as error:
                self._answer(order, "refused", wire=error.wire, sentence=str(error))

    def _poll(self, order: Message) -> None:
        """Every model; where "names" are given, only those are looked into."""
        models, problems = self._repositories.scan()
        wanted = order["names"]
        places = {each: place for each, place in models.items() if wanted is None or each.name in wanted}
        for found in self._repositories.look_at_each(places):
            self._answer(order, "found", model=found.message())
        self._answer(order, "polled", identifiers=[*models, *problems], problems=list(problems.items()))

    def _look_all(self, order: Message) -> None:
        """The models of a name, perhaps with what the load request brought along."""
        directory, repository = (order[kind] and Path(order[kind]) for kind in ("directory", "repository"))
        for found in self._repositories.look_all(order["name"], Override(order["config"], directory, repository)):
            self._answer(order, "found", model=found.message())
        self._answer(order, "looked")

    def _look(self, order: Message) -> None:
        """One model."""
        found = self._repositories.look(order["name"], preferred=order["preferred"])
        self._answer(order, "looked", model=None if found is None else found.message())

    def _discard(self, order: Message) -> None:
        shutil.rmtree(order["directory"], ignore_errors=True)
        self._answer(order, "discarded")

    def _forget(self, order: Message) -> None:
        self._repositories.forget([Path(directory) for directory in order["keep"]])

    def _answer(self, order: Message, op: str, **facts: object) -> None:
        self._channel.send({"op": op, "order": order["order"], **facts})


def main() -> int:
    """The process's whole life; its exit status."""
    die_with_parent()
    faulthandler.enable()
    ignore_group_signals()
    try:
        with control.join("poller") as channel:
            set_title("repository poller")
            message, _ = channel.receive()
            log.configure(**message["log"])
            sources = [
                Path(place) if slot is None else CloudRepository(CloudUrl.parse(place), Path(slot), os.environ)
                for place, slot in message["repositories"]
            ]
            repositories = Repositories(
                sources,
                message["strict"],
                message["config_name"],
                message["namespacing"],
                Path(message["backend_directory"]),
            )
            Poller(channel, repositories).run()
    except GONE:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
