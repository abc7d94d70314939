"""shoal/triton_messages.py: Triton's messages without grpcio, shared with tritonclient where that is imported, too."""

import subprocess
import sys

import pytest

OURS = "from shoal import triton_messages as t; m = t.model_config().ModelConfig(name='a'); s = t.service()"
THEIRS = "from tritonclient.grpc import model_config_pb2 as pb, service_pb2 as theirs"
USE = "r = theirs.ModelConfigResponse(); r.config.CopyFrom(m); print(r.config.name, type(r) is s.ModelConfigResponse)"
ALONE = f"import sys; {OURS}; print('grpc' in sys.modules, 'tritonclient.grpc' in sys.modules)"


@pytest.mark.parametrize(
    ("program", "printed"),
    [(ALONE, "False False"), (f"{OURS}; {THEIRS}; {USE}", "a True"), (f"{THEIRS}; {OURS}; {USE}", "a True")],
    ids=["without grpcio", "ours first", "theirs first"],
)
def test_the_messages_are_shared_in_either_order(program: str, printed: str) -> None:
    """In processes of their own: an import cannot be taken back."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed
