"""The first file that a worker runs in an environment of its own; the links of server_packages.py lie beside it.

Runs in the environment's interpreter, before anything of Shoal is imported.
"""

import os
import runpy
import sys

#: The directory of links to packages that Python looks for last, behind the environment's own (server_packages.py).
BEHIND = ".behind"

if __name__ == "__main__":
    sys.path.append(os.path.join(sys.path[0], BEHIND))
    runpy.run_module("shoal.workers.worker", run_name="__main__", alter_sys=True)
