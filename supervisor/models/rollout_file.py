"""The rows of the file in which rollouts are kept (supervisor/state_file.py), so that a server that starts again goes
on with them. Runs in the supervisor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.rollout_settings import RolloutPlan, read_plan
from shoal.supervisor.state_file import StateFile

#: The key of the file's rows, and the first part of the file's name.
ROLLOUTS = "rollouts"


class SavedRollout(NamedTuple):
    """A rollout as it is saved in the file."""

    name: str
    namespace: str
    plan: RolloutPlan
    stable: int
    step: int
    phase: str  # the value of a Phase (rollout.py)
    reason: str

    @property
    def chosen(self) -> int:
        """The version that requests without one mean: the promoted one, else the stable one."""
        return self.plan.version if self.phase == "promoted" else self.stable


def rollout_file(path: Path | None, repositories: Sequence[object] = ()) -> StateFile[SavedRollout]:
    """The file at a path in which a server of these repositories keeps rollouts."""
    return StateFile(path, ROLLOUTS, _saved, lambda each: {**each._asdict(), "plan": each.plan.members()}, repositories)


def _saved(row: Any) -> SavedRollout:
    texts = [row[each] for each in ("name", "namespace", "phase", "reason")]
    if not all(type(each) is str for each in texts) or type(row["stable"]) is not int or type(row["step"]) is not int:
        raise ValueError("a rollout has members of other types")
    if row["phase"] not in ("running", "paused", "promoted", "rolled back") or row["step"] < 0:
        raise ValueError(f"a rollout has the phase {row['phase']!r} and the step {row['step']}")
    if type(row["plan"]) is not dict:
        raise ValueError("a rollout's plan is an object of JSON")
    return SavedRollout(
        row["name"], row["namespace"], read_plan(row["plan"]), row["stable"], row["step"], row["phase"], row["reason"]
    )
