"""The chart's container, run as it stands: command line, ports, probes, preStop, /dev/shm and limits of its size."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.limits import nbytes

ROOT = Path(__file__).parents[2]


def can_unshare() -> bool:
    """Whether this user may have namespaces of mounts and of the network, as root may outside some containers."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True
    )
    return tried.returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="NOT CHECKED: the pod's container, for want of namespaces of its own")
def test_the_container_runs_as_it_stands(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "model_repository" / "digits", tmp_path / "digits")
    rendered = yaml.safe_load_all((Path(__file__).parent / "rendered" / "values.yaml").read_text())
    [pod] = [each["spec"]["template"]["spec"] for each in rendered if each and each["kind"] == "Deployment"]
    [container] = pod["containers"]
    [volume] = [each["emptyDir"] for each in pod["volumes"] if each["name"] == "shared-memory"]
    size_mib = int(volume["sizeLimit"].removesuffix("Mi"))
    command = ["unshare", "--mount", "--net", sys.executable, "-m", "tests.deploy.pod"]
    done = subprocess.run(
        [*command, json.dumps(container), str(tmp_path), str(size_mib)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["refused before"]  # so only the startup probe counts while models load
    assert (seen["live"], seen["ready"], seen["metrics"]) == (True, True, True)
    assert 0 < seen["shared memory"] < size_mib * 2**20
    assert (seen["preStop"], seen["exit code"]) == (0, 0)
    assert seen["seconds of preStop"] >= float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert seen["ready until the end of preStop"]  # requests of proxies that have not heard are answered
    assert seen["left in shared memory"] == []
    if seen["limits"] is not None:  # it says on standard error why there are none
        assert seen["limits"]["killed"] == 0
        assert 0 < seen["limits"]["peak"] < nbytes(container["resources"]["limits"]["memory"])
