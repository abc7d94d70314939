"""ranks.py: ranks that cannot be started or cannot load; whole lives are in end_to_end/test_torchserve_ranks.py."""

import errno
import os
from multiprocessing.connection import Pipe
from typing import Any, NoReturn

import pytest

from shoal.errors import InternalError, ShoalError
from shoal.workers.backends.torchserve import rank, ranks
from shoal.workers.backends.torchserve.archive import Launch
from shoal.workers.backends.torchserve.ranks import Ranks

LAUNCH = Launch(num_processes=2, num_threads=1, shares_batches=True)


def test_a_rank_that_cannot_load_is_reported_while_its_worker_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler's rank 0 may load for minutes where rank 1 has failed at once."""

    def end(status: int) -> NoReturn:
        raise SystemExit(status)

    refused: list[ShoalError] = []
    started, (ours, theirs) = Ranks(LAUNCH, refused.append), Pipe()
    with ours, theirs:
        started._connections.append(ours)
        theirs.send_bytes(rank.pack("no memory"))
        monkeypatch.setattr(ranks, "_REPORT_S", 0.0)
        monkeypatch.setattr(os, "_exit", end)
        with pytest.raises(SystemExit):
            started._watch()
    assert [(type(each), str(each)) for each in refused] == [
        (InternalError, "rank 1 of the handler cannot load it: no memory")
    ]


@pytest.mark.parametrize(("where", "name"), [(ranks, "Pipe"), (ranks, "_fork"), (os, "pidfd_open")])
def test_a_rank_that_cannot_be_started_is_an_error_of_the_load(
    where: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    model: Any = None
    monkeypatch.setattr(ranks, "_fork", lambda: 2**22)
    monkeypatch.setattr(where, name, refuse)
    with pytest.raises(InternalError, match=r"^rank 1 of the handler cannot be started: Too many open files$"):
        Ranks(LAUNCH, lambda _error: None).start(model, model, model)
