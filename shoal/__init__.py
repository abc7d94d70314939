"""Shoal: a model server that takes Triton's place.

The import name of everything, and what every process shares: errors, datatypes, requests, the model configuration and
the control plane. The processes and the medium between them are folders at the root of the repository (`frontend/`,
`batcher/`, `workers/`, `shm/`), imported as `shoal.frontend` and so on. Importing this package runs nothing.
"""

__version__ = "0.1.0"
