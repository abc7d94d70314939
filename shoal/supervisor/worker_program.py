"""What the process of an instance runs: a worker, or what makes a Python environment and then becomes one.

Runs in the supervisor.
"""

import os
from pathlib import Path

from shoal.control import ADDRESS_VARIABLE
from shoal.environments import enter
from shoal.environments.cache import cache_directory
from shoal.environments.wanted import wanted
from shoal.model_config.python_backends import runs_on
from shoal.placement import Placement, thread_environment
from shoal.repository.lifecycle import ModelVersion
from shoal.supervisor.children import Program
from shoal.supervisor.host import Host


def worker_program(number: int, version: ModelVersion, placement: Placement, host: Host) -> tuple[str, Program]:
    """The kind of zygote that can fork the process, "" for none, and its program."""
    options, name = host.options, placement.instance_name
    variables = {
        ADDRESS_VARIABLE: host.control_address,
        "SHOAL_INSTANCE": str(number),
        **thread_environment(len(placement.cores)),
    }
    own = wanted(
        version.version_dir,
        version.config,
        Path(options.backend_directory),
        install_requirements=options.install_requirements,
    )
    if own is None:
        return runs_on(version.config), Program(f"worker {name}", ["shoal.workers.worker"], variables)
    directory = cache_directory(options.environment_cache_directory, os.environ)
    return "", Program(f"worker {name}", enter.program(own, name, directory, host.log_settings), variables)
