"""Bodies inflated within their limit and deflated as asked; zlib alone is the second witness."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from random import Random

import pytest

from shoal.errors import InvalidArgumentError, TooLargeError, UnsupportedError
from shoal.frontend.response import Response
from shoal.frontend.upload_budget import NoUploadMemoryError
from shoal.frontend.v2.compression import (
    LEAST_EXPANDED_BYTES,
    ExpansionLimitError,
    UnsupportedEncodingError,
    compress,
    decompress,
    inflate,
    preferred_encoding,
    unpack,
)

BODY = b'{"inputs":[]}' * 2000
ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP"])
@pytest.mark.parametrize("encoder", ENCODERS.values())  # the stream says what it is
def test_inflates(encoding: str, encoder: Callable[[bytes], bytes]) -> None:
    assert decompress({"content-encoding": encoding}, memoryview(encoder(BODY)), len(BODY)) == BODY


@pytest.mark.parametrize("headers", [{}, {"content-encoding": ""}, {"content-encoding": "identity"}])
def test_leaves_a_plain_body_where_it_is(headers: dict[str, str]) -> None:
    view = memoryview(BODY)
    assert decompress(headers, view, 1) is view


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd", "x"])
def test_refuses_other_encodings(encoding: str) -> None:
    with pytest.raises(UnsupportedEncodingError) as caught:
        decompress({"content-encoding": encoding}, memoryview(BODY), 1 << 20)
    assert isinstance(caught.value, UnsupportedError)
    assert str(caught.value) == "Unsupported compression type"
    assert caught.value.headers == (("Accept-Encoding", "gzip, deflate"),)


@pytest.mark.parametrize("encoder", ENCODERS.values())
def test_refuses_damaged_streams(encoder: Callable[[bytes], bytes]) -> None:
    whole = encoder(BODY)
    for body, sentence in (
        (whole[:-1], "failed to decompress the request body: the compressed stream is incomplete"),
        (b"", "failed to decompress the request body: the compressed stream is incomplete"),
        (whole + b"xyz", "failed to decompress the request body: 3 bytes follow the compressed stream"),
        (whole + whole[:9], "failed to decompress the request body: 9 bytes follow the compressed stream"),
        (BODY, "failed to decompress the request body: Error -3 while decompressing data: incorrect header check"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            decompress({"content-encoding": "gzip"}, memoryview(body), 1 << 20)
        assert str(caught.value) == sentence


def test_a_bomb_is_inflated_no_further_than_the_limit() -> None:
    bomb = memoryview(zlib.compress(bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(InvalidArgumentError) as caught:
        decompress({"content-encoding": "deflate"}, bomb, 1 << 20)
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(caught.value) == (
        "decompressed request body has a byte_size that exceeds the maximum allowed value of 1048576 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert peak_nbytes < 4 << 20


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", "identity"),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("deflate;q=0.5, gzip;q=0.8", "gzip"),
        ("gzip;q=0.5, identity", "identity"),
        ("gzip; q=0.3, br", "gzip"),
        ("gzip;q=0", "identity"),
        ("gzip;q=abc", "identity"),
        ("gzip;q=nan", "identity"),
        ("br, *", "identity"),
        (" , ;q=1,GZIP", "gzip"),
    ],
)
def test_prefers_the_highest_weight_then_the_first(accepted: str, encoding: str) -> None:
    assert preferred_encoding(accepted) == encoding


def test_deflates_all_chunks_as_one_body() -> None:
    def closed() -> None: ...

    headers = (("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", "2"))
    response = Response(200, headers, (b"{}", memoryview(BODY)), closed)
    for encoding in ENCODERS:
        status, sent, (body,), close, *_ = compress(response, encoding)
        assert (status, sent, close) == (200, (*headers, ("Content-Encoding", encoding)), closed)
        assert zlib.decompress(body, 47) == b"{}" + BODY
    assert compress(response, "identity") is response
    assert compress(Response(200), "gzip") == Response(200)


def test_a_bomb_is_inflated_no_further_than_so_many_times_its_size() -> None:
    bomb = memoryview(zlib.compress(bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(TooLargeError) as caught:
        decompress({"content-encoding": "deflate"}, bomb, 1 << 30, 100)
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_nbytes < 4 * 100 * len(bomb)
    assert str(caught.value) == (
        f"the request body of {len(bomb)} bytes has more than {100 * len(bomb)} bytes when decompressed, which is 100 "
        "times as many, or 1 MiB. Send it uncompressed, or raise --max-expansion"
    )
    assert caught.value.http_status == 413


@pytest.mark.parametrize(("nbytes", "max_expansion"), [(1 << 20, 1), (64 << 20, 0)])
def test_a_mebibyte_may_be_as_small_as_it_gets_and_all_else_where_there_is_no_bound(
    nbytes: int, max_expansion: int
) -> None:
    packed = memoryview(zlib.compress(bytes(nbytes)))
    assert len(decompress({"content-encoding": "deflate"}, packed, 64 << 20, max_expansion)) == nbytes


@pytest.mark.parametrize("encoder", ENCODERS.values())
@pytest.mark.parametrize(
    ("noise", "zeros"), [(3 << 20, 0), (3 << 20, 9 << 20), (1 << 16, 5 << 20), (0, 1), (0, 1 << 20)]
)
def test_no_more_is_counted_than_a_body_may_soon_have(
    encoder: Callable[[bytes], bytes], noise: int, zeros: int
) -> None:
    """What grows a little is not counted as if it grew a hundredfold, which would be too much for most budgets."""
    body = Random(1).randbytes(noise) + bytes(zeros)
    packed = memoryview(encoder(body))
    counted: list[int] = []
    unpacked = unpack(packed, 1 << 30, 100, counted.append)
    assert unpacked == body
    assert counted[-1] == len(body)
    assert counted[0] > 0
    assert max(counted) <= max(2 * len(body), len(packed), LEAST_EXPANDED_BYTES)


def test_what_does_not_fit_is_refused_before_it_is_there() -> None:
    counted: list[int] = []

    def expand(nbytes: int) -> None:
        counted.append(nbytes)
        if nbytes > 8 << 20:
            raise NoUploadMemoryError(8 << 20)

    bomb = memoryview(zlib.compress(bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(NoUploadMemoryError):
        unpack(bomb, 1 << 30, 0, expand)
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counted == [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20]
    assert peak_nbytes < 17 << 20


@pytest.mark.parametrize("nbytes", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 21) - 1, 1 << 21, (1 << 21) + 1])
@pytest.mark.parametrize("limit", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 21) - 1, 1 << 21, (1 << 21) + 1])
def test_a_limit_holds_to_the_byte_wherever_parts_end(nbytes: int, limit: int) -> None:
    packed = zlib.compress(bytes(nbytes))
    if nbytes > limit:
        with pytest.raises(ExpansionLimitError):
            inflate(packed, limit)
    else:
        assert inflate(packed, limit) == bytes(nbytes)
        with pytest.raises(InvalidArgumentError, match="1 bytes follow the compressed stream"):
            inflate(packed + b"x", limit)
