"""The import of torch for all workers whose handlers use it: only their zygote imports this module, once."""

import os

# Set before the import, as in workers/backends/pytorch/backend.py: else GNU OpenMP's threads would spin while they
# wait.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch

__all__ = ["torch"]
