"""torch, imported once for all workers whose handlers use it: by their zygote, and by nothing else."""

import os

# Before the import, as in workers/backends/pytorch: GNU OpenMP's threads would spin while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch

__all__ = ["torch"]
