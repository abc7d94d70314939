"""What the log says of a batch whose execution has failed."""

from shoal.model_config.signature import Signature
from shoal.workers.failure_log import failure_fields
from shoal.workers.requests import Request, RequestReader
from tests.request_headers import request_header
from tests.workers.worker_harness import CONFIG


def test_a_failed_batch_is_logged_with_its_number_and_ids_and_a_warm_up_as_part_of_the_load() -> None:
    def opened(id_: str, batch: int) -> Request:
        header = request_header(id_, [["INPUT0", 11, [1, 4], 0, 16]], [], {})
        return RequestReader(Signature.from_config(CONFIG)).open(
            0, memoryview(bytes(16)), header, (0, 1, batch, *[0] * 13)
        )

    batch = {"stage": "execute", "batch": 7}
    assert failure_fields([opened("a", 7), opened("", 7), opened("b", 7)]) == {**batch, "request_id": "a, b"}
    assert failure_fields([opened("", 7)]) == batch
    assert failure_fields([opened("", 0)]) == {"stage": "load"}
