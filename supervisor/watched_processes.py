"""The processes that must not be stopped: what stopped_processes.py watches. Runs in the supervisor."""

from collections.abc import Iterable, Iterator

from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.models.instance_state import COMING_UP
from shoal.supervisor.models.roster import Roster
from shoal.supervisor.processes.children import running
from shoal.supervisor.processes.stopped_processes import Watched


def watched(roster: Roster, front_ends: Iterable[Participant]) -> Iterator[Watched]:
    """The server's own processes that run no users' code, and workers that are coming up: what they load may take
    long, and has minutes, while one that is up has the limit of an execution."""
    for child in running():
        if not child.program.runs_model:
            yield Watched(child.pid, f"process '{child.program.role}'", child.signal)
    for instance in roster:
        if instance.state in COMING_UP and instance.pid:
            yield Watched(instance.pid, f"the worker of {instance.title}, which loads,", instance.worker.signal)
    for client in front_ends:
        yield Watched(client.member.pid, "a front end", client.member.signal)
