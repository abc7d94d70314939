"""frontend/v2/shared_memory.py: no region is there, and none can be made."""

import pytest

from shoal.errors import NotFoundError, UnsupportedError
from shoal.frontend.response import Response
from shoal.frontend.v2.shared_memory import refuse_client_shm, regions


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_there_are_no_regions(kind: str) -> None:
    assert regions(kind, "") == Response(200, (("Content-Type", "application/json"),), (b"[]",))
    with pytest.raises(NotFoundError, match=rf"^Unable to find {kind} shared memory region: 'r'$"):
        regions(kind, "r")


def test_none_can_be_registered() -> None:
    with pytest.raises(UnsupportedError, match=r"^Client shared memory is disabled\. Start the server with "):
        refuse_client_shm(None)
