"""--model-load-gpu-limit: no model is loaded on a GPU of whose memory more than a share is in use. Runs in the
supervisor.

All that is in use counts, whatever uses it. The limit is looked at once, before a version's first worker starts: what a
model needs is not known before, and workers that are started again are not asked.
"""

from collections.abc import Iterable, Mapping

from shoal.errors import UnavailableError
from shoal.placement import Placement
from shoal.supervisor.event_loop import EventLoop, first
from shoal.supervisor.memory.gpu_memory import GpuMemory

_MIB = 1 << 20
#: How long a load waits for a GPU's figures (ours).
ANSWER_S = 10.0


async def refuse_full_gpus(
    title: str, placements: Iterable[Placement], limits: Mapping[int, float], memory: GpuMemory, loop: EventLoop
) -> None:
    """Raise UnavailableError if a GPU of these placements is fuller than its limit, or does not say how full it is.

    `limits` are shares from 0 to 1, by the number of the GPU.
    """
    gpus = {placement.gpu.id: placement.gpu for placement in placements if placement.gpu is not None}
    for number in sorted(gpus.keys() & limits.keys()):
        answer = memory.use_of(gpus[number], loop)
        await first(answer, limit_s=ANSWER_S)
        use = answer.result() if answer.done() else None
        if use is None:
            raise UnavailableError(
                f"{title} is not loaded on GPU {number}: --model-load-gpu-limit={number}:{limits[number]:g}, and how "
                "much of its memory is in use is not known (it needs the package nvidia-ml-py)"
            )
        if use.used_nbytes > limits[number] * use.total_nbytes:
            in_use = f"{use.used_nbytes // _MIB} of {use.total_nbytes // _MIB} MiB"
            raise UnavailableError(
                f"{title} is not loaded on GPU {number}: {in_use} of its memory are in use, more than "
                f"--model-load-gpu-limit={number}:{limits[number]:g} allows. Unload other models, or raise the limit"
            )
