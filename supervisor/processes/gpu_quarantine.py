"""Quarantine of a GPU that processes lose again and again: no worker is started again there for a while. Pure; runs in
the supervisor.

    in use ─4 losses of workers of 2 or more models within 60 s─► quarantine, 60 s ─over─► on probation
       ▲                                                              ▲                        │
       └───── 600 s without a loss ────────────────────────────────── │ ──────────────────────┤
                                                                      └─ one loss: twice as long, at most 600 s

A loss counts if it came with its worker's first batch, or before: a request that brings down every worker is not the
GPU's fault, and neither is a model that never works, which is why one model's losses are left to its own breaker
(restarts.py).
"""

from dataclasses import dataclass, field

#: Losses of a GPU, the seconds within which they come, and the models that lose it. Ours, as all figures here.
MAX_LOSSES, WITHIN_S, MIN_MODELS = 4, 60.0, 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 600.0
#: Seconds without a loss after which a GPU's losses are forgotten.
PROBATION_S = 600.0


@dataclass(slots=True)
class _Record:
    """The losses of one GPU."""

    losses: list[tuple[float, str]] = field(default_factory=list)  # the time of each, and the model whose worker it was
    pause_s: float = 0.0  # the length of the last quarantine; 0: none to be doubled
    until_s: float = 0.0


class GpuQuarantine:
    """The losses of GPUs, and the quarantines that follow from them."""

    def __init__(self) -> None:
        # Changed by lost: each GPU's record, by its UUID.
        self._records: dict[str, _Record] = {}

    def lost(self, uuid: str, model: str, now_s: float) -> bool:
        """Note that a worker of `model` has lost a GPU with its first batch, or before; True if that begins a
        quarantine."""
        record = self._records.setdefault(uuid, _Record())
        if now_s < record.until_s:
            return False  # the GPU is in quarantine already: the worker was started before that
        if record.pause_s and now_s - record.until_s > PROBATION_S:
            record.pause_s = 0.0
        record.losses = [loss for loss in record.losses if now_s - loss[0] <= WITHIN_S] + [(now_s, model)]
        models = {name for _, name in record.losses}
        if not (record.pause_s or (len(record.losses) >= MAX_LOSSES and len(models) >= MIN_MODELS)):
            return False
        record.pause_s = min(2 * record.pause_s or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        record.until_s = now_s + record.pause_s
        record.losses = []
        return True

    def left_s(self, uuid: str, now_s: float) -> float:
        """Seconds until workers may be started again on a GPU; 0 if it is in no quarantine."""
        record = self._records.get(uuid)
        return 0.0 if record is None else max(0.0, record.until_s - now_s)
