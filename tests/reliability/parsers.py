"""Every parser of a stranger's bytes: how input for it is made and damaged, and what it may say of it.

    python -m tests.reliability.parsers NAME NUMBER [SEED]   # NAME may be "all"; TMPDIR=/dev/shm spares the disk

An input that a parser may not survive is kept in tests/data/fuzz/NAME, and is tried first from then on
(test_parsers.py). The input of a fuzzer that walks through states is the seed of its dice, in digits.
"""

import gzip
import hashlib
import io
import json
import logging
import os
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgpack

from shoal.api_keys import entry_of as key_entry
from shoal.api_keys import parse_keys
from shoal.cli.torchserve.properties import PropertiesError, parse_properties, with_variables
from shoal.environments.archive import unpack as unpack_environment
from shoal.errors import InvalidArgumentError, ShoalError
from shoal.frontend.grpc import infer as grpc_infer
from shoal.frontend.header_forwarding import NOTHING
from shoal.frontend.http.http_head import has_bare_line_feed
from shoal.frontend.prepared import PreparedRequest, block_nbytes, write_block
from shoal.frontend.torchserve.forms import form_fields
from shoal.frontend.v2.compression import inflate
from shoal.frontend.v2.generate import prepare as prepare_generate
from shoal.frontend.v2.infer import prepare
from shoal.messages.from_client import GuestConnected, QuestionAsked
from shoal.messages.message import Message, MessageError, encode
from shoal.messages.shared import Acknowledged
from shoal.model_config import pbtxt
from shoal.model_config.autocomplete import IOTensor, ModelIO, needs_autocomplete
from shoal.model_config.finish import finish_config
from shoal.model_config.load import prepare_config
from shoal.repository.torchserve.archive import Limits, RefusedArchiveError
from shoal.repository.torchserve.archive import unpack as unpack_model
from shoal.repository.torchserve.manifest import ManifestError, read_manifest
from shoal.repository.torchserve.yaml_config import YamlError, read_yaml_config
from shoal.star.models import ModelEntry
from tests.batcher.fuzz import Fuzz
from tests.frontend import gunicorn_judge, heads
from tests.frontend.grpc import diced_messages
from tests.frontend.grpc.http2 import fuzz as http2_fuzz
from tests.messages import EVERY_KIND
from tests.repository.torchserve.archives import HANDLER, manifest
from tests.star.entries import entry_of

CORPUS = Path(__file__).parents[1] / "data" / "fuzz"
SAMPLES = Path(__file__).parents[2] / "model_repository"
LIMIT = 1 << 20
#: Pieces that mean something to one parser or another.
PIECES = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b":", b",", b";", b"=", b"\\"),
    *(b"{", b"}", b"[", b"]", b'"', b"[" * 200, b'{"a":' * 120, b"-1", b"0", b"1e999", b"NaN", b"Infinity", b"null"),
    *(b"true", b"9" * 20, b"18446744073709551616", b"-9223372036854775809", b"\\ud800", b"\\u0000", b"../", b"/"),
    *(b"\x80", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"%00", b"%c0%ae", b"<<", b"*a", b"&a "),
)


class Parser(NamedTuple):
    """A parser under attack. `read` raises nothing but `refused`, whatever it is given."""

    name: str
    make: Callable[[Random], bytes]
    read: Callable[[bytes], object]
    refused: tuple[type[Exception], ...] = (ShoalError,)
    #: What one input counts for: of a parser that walks through states, so many frames or records.
    weight: int = 1


def mutated(dice: Random, data: bytes) -> bytes:
    """The data with one to four damages: bits, bytes, pieces that mean something, parts lost or said twice, an end."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        place = dice.randrange(len(changed) + 1)
        match dice.randrange(7):
            case 0 if place:
                changed[place - 1] ^= 1 << dice.randrange(8)
            case 1:
                changed[place:place] = dice.choice(PIECES)
            case 2:
                changed[place : place + dice.randrange(1, 12)] = dice.choice(PIECES)
            case 3:
                del changed[place : place + dice.randrange(1, 20)]
            case 4:
                changed[place:place] = changed[place : place + dice.randrange(1, 40)]
            case 5:
                changed[place:place] = dice.randbytes(dice.randrange(1, 6))
            case _ if dice.random() < 0.2:
                del changed[place:]
    return bytes(changed)


def of(*seeds: bytes) -> Callable[[Random], bytes]:
    """Damages one of these."""
    return lambda dice: mutated(dice, dice.choice(seeds))


def walk(run: Callable[[int], object]) -> tuple[Callable[[Random], bytes], Callable[[bytes], object]]:
    """A fuzzer that makes its input by itself, from a seed."""
    return lambda dice: b"%d" % dice.getrandbits(48), lambda data: run(int(data))


# --- HTTP ---

HEADS = (
    heads.get(), heads.infer(b"Content-Length: 5"), heads.get(b"A: b", b"Accept-Encoding: gzip"),
    heads.infer(b"Content-Length: 95", b"Inference-Header-Content-Length: 71", b"Connection: close"),
    b"GET /v2/models/a%20b/versions/3/ready?x=y HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\n\r\n",
)  # fmt: skip


def read_head(data: bytes) -> object:
    """What the lane accepts is to gunicorn the same request."""
    has_bare_line_feed(data)
    return gunicorn_judge.assert_gunicorn_agrees(data, head_judge())


head_judge = cache(gunicorn_judge.head_judge)


def read_chunks(data: bytes) -> object:
    """What the road collects is the whole request that gunicorn reads, in whatever pieces it comes."""
    return [gunicorn_judge.assert_same_end(data + gunicorn_judge.HEAD + b"\r\n", size) for size in (1, 3, 1000)]


# --- requests ---

ENTRIES = (
    entry_of("m", 4, [("A", "TYPE_INT32", [2])], [("OUTA", "TYPE_INT32", [2])]),
    entry_of("m", 0, [("A", "TYPE_FP32", [-1, -1]), ("B", "TYPE_STRING", [-1], {"optional": True})]),
    entry_of("m", 0, [("A", "TYPE_STRING", [-1])]),
    entry_of("m", 0, [("A", "TYPE_BOOL", [-1])]),
)


def tensor(datatype: str, shape: list[int], data: object) -> dict[str, object]:
    """An input of a request in JSON."""
    return {"name": "A", "datatype": datatype, "shape": shape, "data": data}


TENSORS = (
    tensor("INT32", [1, 2], [1, 2]), tensor("FP32", [2, 2], [[0.5, 1e3], [-1, 2]]), tensor("BOOL", [2], [True, False]),
    tensor("BYTES", [2], ["a", "é\n"]),
    {"name": "A", "datatype": "INT32", "shape": [1, 2], "parameters": {
        "shared_memory_region": "r", "shared_memory_offset": 0, "shared_memory_byte_size": 8}},
)  # fmt: skip
OUTPUTS = [{"name": "OUTA", "parameters": {"binary_data": True, "classification": 3}}]
SETTINGS = {"sequence_id": 7, "sequence_start": True, "priority": 2, "timeout": 10, "x": "y", "z": 0.5}
BODIES = tuple(
    json.dumps({"id": "7", "inputs": [each], **more}).encode()
    for each in TENSORS
    for more in ({}, {"outputs": OUTPUTS}, {"parameters": SETTINGS})
)


def read_json(data: bytes) -> object:
    """As `/infer`, for models of every kind, and as `/generate`."""
    written_for_all(lambda entry: prepare(entry, {}, memoryview(data), LIMIT))
    return prepare_generate(ENTRIES[0], {}, memoryview(data), LIMIT, NOTHING)


def binary(element: dict[str, object], values: bytes, length: bytes = b"") -> bytes:
    """The length that the head announces, in a line of its own, then the body."""
    head = json.dumps({"inputs": [element | {"parameters": {"binary_data_size": len(values)}}]}).encode()
    return (length or b"%d" % len(head)) + b"\n" + head + values


def without_data(datatype: str, shape: list[int]) -> dict[str, object]:
    """An input whose data follows the JSON."""
    return {"name": "A", "datatype": datatype, "shape": shape}


BINARY = (
    binary(without_data("INT32", [1, 2]), bytes(8)), binary(without_data("FP32", [2, 1]), bytes(8)),
    binary(without_data("BYTES", [2]), b"\1\0\0\0a\2\0\0\0bc"), b"0\n" + bytes(8), b"0\n\1\0\0\0a",
)  # fmt: skip


def read_binary(data: bytes) -> None:
    """As `/infer` with tensors behind the JSON."""
    length, _, body = data.partition(b"\n")
    headers = {"inference-header-content-length": length.decode("latin-1")}
    written_for_all(lambda entry: prepare(entry, headers, memoryview(body), LIMIT))


def written_for_all(prepare_for: Callable[[ModelEntry], PreparedRequest]) -> None:
    """The request for each model, in a block as a worker gets it; a refusal by one is no reason not to go on."""
    for entry in ENTRIES:
        try:
            prepared = prepare_for(entry)
            write_block(prepared, memoryview(bytearray(block_nbytes(prepared))))
        except ShoalError as error:
            assert str(error), "a refusal without a sentence"


FORMS = (
    b'multipart/form-data; boundary=x\n--x\r\nContent-Disposition: form-data; name="data"\r\n\r\nabc\r\n--x\r\n'
    b'Content-Disposition: form-data; name="f"; filename="a.json"\r\nContent-Type: application/json\r\n\r\n{}\r\n--x--',
    b"application/x-www-form-urlencoded\na=b&c=%20d&a=e&f",
)


def read_form(data: bytes) -> object:
    """A body behind its content type, in a line of its own."""
    kind, _, body = data.partition(b"\n")
    return form_fields(kind.decode("latin-1"), memoryview(body))


def read_grpc(data: bytes) -> object:
    """As protobuf parses it, and as a request for models of every kind."""
    if diced_messages.check_split(data) is None:
        return None
    request, raws = grpc_infer.parse(data)
    written_for_all(lambda entry: grpc_infer.prepare(entry, request, raws))
    return None


def make_grpc(dice: Random) -> bytes:
    """A damaged ModelInferRequest."""
    return diced_messages.damaged(dice, diced_messages.request_of(dice).SerializeToString())


# --- configurations ---

CONFIGS = tuple(path.read_bytes() for path in sorted(SAMPLES.glob("*/config.pbtxt")))
MODEL_IO = ModelIO((IOTensor("X", "TYPE_FP32", (-1, 512)),), (IOTensor("Y", "TYPE_FP32", (-1, 10)),))


def read_config(data: bytes) -> object:
    """A config.pbtxt, up to a configuration that is complete and checked; and as JSON, printed and read again."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None  # pbtxt.read refuses it
    config = pbtxt.parse(text, Path("config.pbtxt"))
    config["name"] = config["name"] or "m"
    assert pbtxt.parse(pbtxt.to_text(config), Path("config.pbtxt")) == config
    prepared = prepare_config(config, workplace())
    return finish_config(prepared, MODEL_IO if needs_autocomplete(prepared) else None)


PROPERTIES = (
    b"inference_address=http://127.0.0.1:8080\n# comment\nnumber_of_netty_threads: 4\nload_models=all\\\n  ,m.mar\n",
    b'models={"m": {"1.0": {"minWorkers": 1, "batchSize": 4}}}\r\nkey\\ a = \\u00e9 $$HOME$$\n! x\ndefault_workers 3',
)


def read_properties(data: bytes) -> object:
    """A config.properties."""
    return with_variables(parse_properties(data), {"HOME": "/"})


KEYS = json.dumps({"a": key_entry("secret", ["infer"], ["*"]), "b": key_entry("other", ["admin"], [])}).encode()
YAMLS = (
    b"minWorkers: 1\nmaxWorkers: 2\nbatchSize: 4\nhandler: {a: [1, 2]}\ndeviceType: cpu\n",
    b"a: &a {x: 1}\nb: *a\nc: {<<: *a}\nuseVenv: true\nmaxBatchDelay: 1.5e3\n",
)


def read_yaml(data: bytes) -> object:
    """A model-config.yaml."""
    path = workplace() / "model-config.yaml"
    path.write_bytes(data)
    return read_yaml_config(path)


def read_manifest_file(data: bytes) -> object:
    """A MANIFEST.json."""
    path = workplace() / "MAR-INF" / "MANIFEST.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return read_manifest(path.parents[1])


# --- archives ---


@cache
def workplace() -> Path:
    """A directory of this process with a version's folder in it; removed when the process ends in order."""
    made = tempfile.TemporaryDirectory(prefix="parsers-")
    _KEPT.append(made)
    (Path(made.name) / "m" / "1").mkdir(parents=True)
    return Path(made.name) / "m"


_KEPT: list["tempfile.TemporaryDirectory[str]"] = []


@cache
def zipped(method: int) -> bytes:
    """A .mar."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (("MAR-INF/MANIFEST.json", manifest()), ("echo.py", HANDLER), ("sub/", "")):
            archive.writestr(zipfile.ZipInfo(name), content, method)  # of no time of day: inputs are those of the seed
    return file.getvalue()


@cache
def tarred() -> bytes:
    """A tar with a file, a directory, a link within and a long name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target in (
            *(("echo/echo.py", tarfile.REGTYPE, ""), ("echo/sub", tarfile.DIRTYPE, "")),
            *(("echo/sub/link", tarfile.SYMTYPE, "../echo.py"), (f"echo/{'é' * 120}", tarfile.REGTYPE, "")),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            member.size = len(HANDLER) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(HANDLER.encode()) if member.size else None)
    return file.getvalue()


@cache
def tarred_and_compressed() -> bytes:
    """A .tar.gz."""
    return gzip.compress(tarred(), 1, mtime=0)


def make_archive(dice: Random) -> bytes:
    """A damaged archive; of a compressed one the contents are damaged as often as the outside."""
    way = dice.randrange(4)
    if way < 2:
        return mutated(dice, zipped((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[way]))
    if way == 2:
        return gzip.compress(mutated(dice, tarred()), 1, mtime=0)
    return mutated(dice, tarred_and_compressed())


def read_archive(data: bytes) -> object:
    """As a model's archive and as an environment's: nothing is written but in its own directory."""
    place = workplace() / "archives"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    archive = place / "archive"
    archive.write_bytes(data)
    for number, unpack in enumerate((_unpack_model, unpack_environment)):
        target = place / f"{number}"
        target.mkdir()
        try:
            unpack(archive, target)
        except (RefusedArchiveError, InvalidArgumentError) as error:
            assert str(error), "a refusal without a sentence"
        assert sorted(os.listdir(place)) == [*map(str, range(number + 1)), "archive"]
        assert archive.stat().st_size == len(data)
    return None


def _unpack_model(archive: Path, target: Path) -> object:
    with archive.open("rb") as file:
        return unpack_model(file, target, Limits(always_bytes=1 << 20))


# --- between processes ---

MESSAGES = (
    *(encode(message, seq)[0] for message, seq in (
        (GuestConnected(), 0), (Acknowledged(7), 0), (QuestionAsked(1, "index", {"a": [1, "b"]}), 3),
    )),
    msgpack.Packer().pack(["ModelChanged", 1, "m", None, {"x": b"y"}]), msgpack.Packer().pack(["Ping", 1 << 63]),
)  # fmt: skip


def read_message(data: bytes) -> Message:
    """As the receiver of messages of every kind."""
    return EVERY_KIND.decode(data, ())[0]


def run_ring(seed: int) -> None:
    """A guest that writes some dozens of records, beside a client that must not notice."""
    Fuzz(seed).run(48)


PARSERS = {
    each.name: each
    for each in (
        Parser("http_head", of(*HEADS), read_head, ()),
        Parser("http_chunks", gunicorn_judge.mutated, read_chunks, ()),
        Parser("json", of(*BODIES), read_json),
        Parser("binary", of(*BINARY), read_binary),
        Parser(
            "gzip",
            of(gzip.compress(BODIES[0], mtime=0), gzip.compress(bytes(5000), mtime=0)),
            lambda data: inflate(data, LIMIT),
        ),
        Parser("form", of(*FORMS), read_form),
        Parser("grpc", make_grpc, read_grpc),
        Parser("http2", *walk(http2_fuzz.run), (), 8),
        Parser("config", of(*CONFIGS), read_config),
        Parser("properties", of(*PROPERTIES), read_properties, (PropertiesError,)),
        Parser("keys", of(KEYS), parse_keys),
        Parser("yaml", of(*YAMLS), read_yaml, (YamlError,)),
        Parser("manifest", of(manifest().encode()), read_manifest_file, (ManifestError,)),
        Parser("archive", make_archive, read_archive),
        Parser("message", of(*MESSAGES), read_message, (MessageError,)),
        Parser("ring", *walk(run_ring), (), 48),
    )
}


def fault_of(parser: Parser, data: bytes) -> str:
    """What is wrong with the parser, in a word; nothing where it does as it should."""
    try:
        parser.read(data)
    except parser.refused as error:
        return "" if str(error) else f"{type(error).__name__} without a sentence"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def attack(parser: Parser, number: int, seed: int) -> list[str]:
    """Read so many damaged inputs; the faults, the inputs of which are kept in the corpus."""
    dice = Random(f"{parser.name} {seed}")
    faults = []
    for _ in range(number):
        data = parser.make(dice)
        if fault := fault_of(parser, data):
            directory = CORPUS / parser.name
            directory.mkdir(parents=True, exist_ok=True)
            (directory / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            faults.append(f"{parser.name}: {fault} for {data[:200]!r}")
            if len(faults) == 5:
                break
    return faults


def main(arguments: list[str]) -> int:
    """Attack the parsers that are named, one after the other; returns 1 if one has a fault."""
    logging.disable(logging.CRITICAL)  # some parsers log what they leave out
    name, number, *seed = arguments
    num_faults = 0
    for parser in PARSERS.values() if name == "all" else [PARSERS[name]]:
        start_s, num_inputs = time.process_time(), -(-int(number) // parser.weight)
        found = attack(parser, num_inputs, int(seed[0]) if seed else 1)
        took_s = time.process_time() - start_s
        told = f"{parser.name}: {num_inputs * parser.weight:,} inputs, {len(found)} faults, {took_s:.0f} s of CPU time"
        sys.stdout.write("\n".join([*found, told]) + "\n")
        sys.stdout.flush()
        num_faults += len(found)
    return int(num_faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
