"""The file in which rollouts are kept, so that a server that starts again goes on with them. Runs in the supervisor.

One JSON object, {"version": 1, "repositories": [...], "rollouts": [...]}, written beside and renamed: a reader sees
the old one or the new one, whole. A server of other repositories leaves it out of account. The file is --rollout-file,
or rollouts-PORT.json in the state directory of systemd or of the user; without a port of HTTP, or with one that the
kernel chose, there is none.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.rollout_settings import RolloutPlan, read_plan

_log = logging.getLogger(__name__)
_FORMAT = 1


class Kept(NamedTuple):
    """One rollout as the file has it."""

    name: str
    namespace: str
    plan: RolloutPlan
    stable: int
    step: int
    phase: str  # rollout.py's Phase
    reason: str


class RolloutFile:
    """The file; without a path nothing is kept."""

    def __init__(self, path: Path | None, repositories: Sequence[object] = ()) -> None:
        self._path = path
        self._repositories = sorted(map(str, repositories))

    def read(self) -> list[Kept]:
        """The rollouts in the file; none if there is no file. What cannot be read is logged and left out."""
        if self._path is None:
            return []
        try:
            found = json.loads(self._path.read_text())
            if found["version"] != _FORMAT:
                raise ValueError(f"it is of version {found['version']}")
            if found["repositories"] != self._repositories:
                _log.info("rollouts in %s are of other model repositories: they are left out of account", self._path)
                return []
            return [_kept(each) for each in found["rollouts"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, LookupError, TypeError, ShoalError) as error:
            _log.error("rollouts of before cannot be read from %s: %s", self._path, error)
            return []

    def write(self, rollouts: Sequence[Kept]) -> None:
        """Replace the file's contents. An error is logged: the rollouts go on."""
        if self._path is None:
            return
        rows = [{**each._asdict(), "plan": each.plan.members()} for each in rollouts]
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("w") as file:
                said = {"version": _FORMAT, "repositories": self._repositories, "rollouts": rows}
                json.dump(said, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            _log.error("rollouts cannot be kept in %s: %s; a restart forgets them", self._path, error)


def _kept(row: dict[str, Any]) -> Kept:
    texts = [row[each] for each in ("name", "namespace", "phase", "reason")]
    if not all(type(each) is str for each in texts) or type(row["stable"]) is not int or type(row["step"]) is not int:
        raise ValueError("a rollout has members of other types")
    if row["phase"] not in ("running", "paused", "promoted", "rolled back") or row["step"] < 0:
        raise ValueError(f"a rollout has the phase {row['phase']!r} and the step {row['step']}")
    return Kept(
        row["name"], row["namespace"], read_plan(row["plan"]), row["stable"], row["step"], row["phase"], row["reason"]
    )


def default_path(environ: Mapping[str, str], port: int) -> Path | None:
    """The file of a server without --rollout-file that serves HTTP at this port; 0: it has no port of its own."""
    if not port:
        return None
    name = f"rollouts-{port}.json"
    if systemd := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(systemd) / name
    user = environ.get("XDG_STATE_HOME", "")
    state = Path(user) if user.startswith("/") else Path.home() / ".local" / "state"
    return state / "shoal" / name
