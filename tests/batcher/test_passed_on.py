"""What of one request is kept for the next: headers are known by their bytes, tensors by their forms, never places."""

from shoal.batcher.passed_on import EnsembleRequests
from shoal.shm import layout
from shoal.shm.layout import REQUEST, B, P
from shoal.shm.slab import Slab
from tests.batcher.ensemble_star import (
    CHAIN,
    DOUBLE,
    FAN,
    FIRST,
    FP32,
    NO_SEQUENCE,
    EnsembleStar,
    config,
    ensemble,
    step,
    tensor,
)
from tests.batcher.star import CLIENT
from tests.request_headers import packed, request_header


def test_an_equal_header_in_another_block_means_another_tensor() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    for number in (1, 2, 3):
        asked = star.ask(number)
        item = star.item(star.double)
        assert star.header(item)[1] == (("X", FP32, (1, 3), 0, 12, asked),)
        result = star.answer(star.double, item)
        item = star.item(star.double)
        assert star.header(item)[1] == (("X", FP32, (1, 3), 128, 12, result),)
        last = star.answer(star.double, item)
        _, (pieces, outputs, parameters) = star.reply()
        assert (pieces, outputs, parameters) == ([last], (("y", FP32, (1, 3), 128, 12),), {**NO_SEQUENCE, "q": FIRST})
        star.release(number, last)
    assert star.is_at_rest


def test_a_known_answer_in_a_smaller_block_is_refused() -> None:
    star = EnsembleStar(ensemble(step("Xx", "Yy")), (DOUBLE,))
    for number, nbytes, is_refused in ((1, 8192, False), (2, 4096, True)):
        star.ask(number)
        item = star.item(star.double)
        block = star.slabs[FIRST].allocate(nbytes)
        assert block is not None
        said = packed(((("Y", FP32, (1, 2), 4096, 8),), {}))
        block.memory[: len(said)] = said
        star.double.send(layout.DONE, item[B.KEY], item[B.BATCH], 0, block.ref, len(said), 10, 20, 40, 70)
        star.step()
        reply, told = star.reply()
        assert bool(reply[P.STATUS]) == is_refused
        assert ("is damaged" in told) == is_refused
        star.release(number, *([] if is_refused else [block.ref]))
    assert star.is_at_rest


def test_a_known_request_in_a_smaller_block_is_refused() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    header = request_header("", (("x", FP32, (1, 2), 4096, 8),), (), {})
    for number, nbytes in ((1, 8192), (2, 4096)):
        block = star.slabs[CLIENT].allocate(nbytes)
        assert block is not None
        block.memory[: len(header)] = header
        star.client.send(REQUEST, number, FAN, block.ref, len(header), 1)
        star.step()
    assert len(star.items(star.double)) == 1
    reply, told = star.reply()
    assert (reply[P.NUMBER], "is damaged" in told) == (2, True)


def test_what_a_request_says_beside_its_tensors_is_its_own() -> None:
    star = EnsembleStar(CHAIN, (DOUBLE, DOUBLE))
    said = [("a", {}), ("b", {"p": 1}), ("a", {"p": 2})]
    for number, (name, parameters) in enumerate(said, 1):
        block = star.slabs[CLIENT].allocate(4096)
        assert block is not None
        header = request_header(name, (("x", FP32, (1, 3), 0, 12),), (), parameters, ("s", 1))
        block.memory[: len(header)] = header
        star.client.send(REQUEST, number, FAN, block.ref, len(header), 1)
        star.step()
    for expected in said:
        item = star.item(star.double)
        name, _, _, parameters, sequence = star.header(item)
        assert ((name, parameters), sequence) == (expected, ("s", 1))
        star.send_done(star.double, item, 4, b"no")


def test_a_model_with_other_shapes_than_its_clients_see() -> None:
    """Its `reshape` is done to what it is asked, and undone to what it answers."""
    star = EnsembleStar(ensemble(step("Xx", "Ya"), step("Xa", "Yy")), (8, DOUBLE))
    reshaped = {"dims": [3], "reshape": {"shape": [3, 1]}}
    turned = config("turned", "", "") | {"input": [tensor("X") | reshaped], "output": [tensor("Y") | reshaped]}
    worker = star.add_worker(33, star.add_model(8, turned))
    star.slabs[33] = Slab(worker.own)
    for number in (1, 2):
        star.ask(number)
        item = star.item(worker)
        assert [shape for _, _, shape, *_ in star.header(item)[1]] == [(1, 3, 1)]
        result = star.send_done(worker, item, 0, packed(((("Y", FP32, (1, 3, 1), 128, 12),), {})))
        item = star.item(star.double)
        assert star.header(item)[1] == (("X", FP32, (1, 3), 128, 12, result),)
        last = star.answer(star.double, item)
        assert star.reply()[1][1] == (("y", FP32, (1, 3), 128, 12),)
        star.release(number, last)
    assert star.is_at_rest


def test_what_a_model_does_not_take_is_refused_however_often_it_took_others() -> None:
    fixed = config("fixed", "X", "Y")
    fixed["input"][0]["dims"] = [3]
    star = EnsembleStar(ensemble(step("Xx", "Yy")), (8,))
    worker = star.add_worker(33, star.add_model(8, fixed))
    star.slabs[33] = Slab(worker.own)
    for number, size in enumerate((3, 4, 3, 4), 1):
        star.ask(number, size=size)
        if size == 3:
            star.send_done(worker, star.item(worker), 4, b"no")
        _, sentence = star.reply()
        assert sentence.startswith("in ensemble 'fan', " + ("no" if size == 3 else "[request id: id] unexpected shape"))
        star.release(number)
    assert star.is_at_rest


def test_an_id_beyond_what_a_parameter_holds_is_negative() -> None:
    """As in Triton, whose parameters are signed."""
    header = request_header("", (), (), {}, ((1 << 64) - 1, 2))
    asked, _ = EnsembleRequests().read(header, 1, 4096, lambda _: 0)
    assert asked.parameters == {"sequence_id": -1, "sequence_start": False, "sequence_end": True}
