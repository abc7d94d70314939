"""OpenAI's endpoints: the model of docs/openai.md, asked by raw HTTP on a lane and on the road, and by OpenAI's client.

The server wants API keys: the key `lane` has no limits, so that a lane answers; requests of `road` are counted there.
"""

import base64
import contextlib
import gzip
import io
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.asking import Reply, fetch
from tests.end_to_end.command_line import run_here
from tests.end_to_end.raw_client import Client
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import Server, serving_to_the_end

PAGE = (Path(__file__).parents[2] / "docs" / "openai.md").read_text()
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
WAYS = pytest.mark.parametrize("way", ["lane", "road"])

VECTORS = config_text("python", "text_input STRING 1", "embedding FP32 3", rows=4)
#: As Triton's users write it; a fake vLLM says the words of the prompt backwards, again and again.
FAKES = Path(__file__).parents[1] / "fake_vllm"
VLLM = """
backend: "vllm"
instance_group { count: 1 kind: KIND_MODEL }
parameters { key: "chat_template" value { string_value: "{{ messages[0].content }}" } }
"""
#: Length, first byte and last byte of each text.
VECTORS_CODE = python_model("""
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[:, 0]
        if b"?" in texts:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no questions"))
        rows = np.array([[len(text), text[0], text[-1]] for text in texts], np.float32)
        count = -1 if b"-" in texts else sum(map(len, texts))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("embedding", rows)], parameters={"num_input_tokens": count}
        )
""")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    made = {"": str(path)}
    for name, arguments in (("lane", []), ("road", ["--rate=100000"]), ("vectors", ["--model=vectors"])):
        done = run_here("key", name, f"--file={path}", *arguments)
        assert done.returncode == 0, done.stderr
        made[name] = done.stdout.strip()
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("openai")
    for name, text in re.findall(r"`(models/[^`]+)`:\n+```\w+\n(.*?)```", PAGE, re.DOTALL):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    add_model(directory / "models", "vectors", VECTORS, VECTORS_CODE)
    (add_model(directory / "models", "words", VLLM) / "model.json").write_text('{"model": "fake"}')
    adapted = add_model(directory / "models", "adapted", VLLM)
    (adapted / "model.json").write_text('{"model": "fake", "enable_lora": true}')
    (adapted / "multi_lora.json").write_text('{"blue": "/blue"}')
    paths = os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": paths}
    flags = (f"--api-keys={keys['']}", "--openai-port=0")
    with serving_to_the_end(directory / "models", *flags, environment=environment) as serving:
        yield serving


@pytest.fixture
def ask(server: Server, keys: dict[str, str]) -> Any:
    def ask(path: str, body: Any = None, key: str = "lane", **headers: str) -> Reply:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return fetch(server.http_port, path, body, headers={"Authorization": f"Bearer {keys[key]}", **headers})

    return ask


def babble(**more: Any) -> dict[str, Any]:
    return {"model": "babble", "max_tokens": 40, "seed": 5, **more}


def chunks(reply: Reply) -> list[Any]:
    """The objects of a stream, which ends as it should."""
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    *events, done, nothing = reply.body.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@WAYS
def test_a_chat_whole_and_in_chunks(ask: Any, way: str) -> None:
    whole = ask(CHAT, babble(messages=HELLO), way, X_Request_Id="mine")
    assert (whole.status, whole.headers["X-Request-Id"]) == (200, "mine")
    said, [choice] = whole.json, whole.json["choices"]
    assert (said["object"], said["model"], choice["message"]["role"]) == ("chat.completion", "babble", "assistant")
    # "system: Be brief.~user: Hi~assistant: "
    assert said["usage"]["prompt_tokens"] == 38
    num = said["usage"]["completion_tokens"]
    assert (len(choice["message"]["content"]), said["usage"]["total_tokens"]) == (num, 38 + num)
    assert choice["finish_reason"] == ("length" if num == 40 else "stop")

    stream = ask(CHAT, babble(messages=HELLO, stream=True, stream_options={"include_usage": True}), way)
    first, *rest, last, usage = chunks(stream)
    assert {each["id"] for each in (first, *rest, last, usage)} == {first["id"]}
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(rest) == num, "a chunk for each response of the model"
    assert "".join(each["choices"][0]["delta"]["content"] for each in rest) == choice["message"]["content"]
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}]
    assert (usage["choices"], usage["usage"]) == ([], said["usage"])


@WAYS
def test_a_completion_stops_where_it_is_told_to(ask: Any, way: str) -> None:
    def text_of(**more: Any) -> tuple[str, str]:
        [choice] = ask(COMPLETIONS, babble(prompt="Once", **more), way).json["choices"]
        return choice["text"], choice["finish_reason"]

    text, _ = text_of()
    assert len(text) > 8
    stop = text[4:6]
    assert text_of(stop=["no such thing", stop]) == (text[: text.index(stop)], "stop")
    assert text_of(max_tokens=3) == (text[:3], "length")
    assert text_of(max_tokens=3, echo=True) == (f"Once{text[:3]}", "length")
    assert text_of(seed=6) != text_of()
    assert len(text_of(max_tokens=None)[0]) <= 16, "--default-max-tokens"
    streamed = chunks(ask(COMPLETIONS, babble(prompt="Once", stop=stop, stream=True), way))
    assert "".join(each["choices"][0]["text"] for each in streamed) == text[: text.index(stop)]
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in streamed[-1]


@WAYS
def test_a_client_that_hangs_up_ends_the_text(ask: Any, server: Server, keys: dict[str, str], way: str) -> None:
    endless = {"prompt": "Once", "temperature": 0}
    assert ask(COMPLETIONS, babble(**endless, max_tokens=500), way).json["choices"][0]["finish_reason"] == "length"
    body = json.dumps(babble(**endless, max_tokens=10**9, stream=True)).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nX-API-Key: {keys[way]}\r\nContent-Length: {len(body)}\r\n\r\n"
    with Client(server) as client:
        client.send(head.encode() + body)
        assert client.socket.recv(1 << 16).startswith(b"HTTP/1.1 200")
        client.reset()
    # The model's only instance is free again.
    assert ask(COMPLETIONS, babble(prompt="a", max_tokens=1), way).status == 200


@WAYS
def test_a_stop_sequence_ends_the_model_s_work(ask: Any, way: str) -> None:
    endless = {"prompt": "Once", "temperature": 0, "max_tokens": 10**9}
    text = ask(COMPLETIONS, babble(**{**endless, "max_tokens": 20}), way).json["choices"][0]["text"]
    for stream in (False, True):
        asked = babble(**endless, stop=text[-1], stream=stream)
        assert ask(COMPLETIONS, asked, way, X_Shoal_Timing="1").status == 200
    assert ask(COMPLETIONS, babble(prompt="a", max_tokens=1), way).status == 200


@WAYS
@pytest.mark.parametrize(
    ("path", "body", "status", "param", "sentence"),
    [
        (CHAT, b"{", 400, None, "failed to parse the request JSON buffer"),
        (CHAT, b"[]", 400, None, "the body must be a JSON object"),
        (CHAT, {}, 400, "model", "'model' must be the name of a model"),
        (CHAT, {"model": "nix", "messages": HELLO}, 404, "model", "unknown model: 'nix'"),
        (CHAT, {"model": "vectors", "messages": HELLO}, 404, "model", "model 'vectors' is no text model"),
        (CHAT, babble(messages=[]), 400, "messages", "at least one message"),
        (CHAT, babble(messages=HELLO, tools=[{"type": "function"}]), 400, "tools", "calls of tools"),
        (CHAT, babble(messages=HELLO, n=2), 400, "n", "'n' must be 1"),
        (CHAT, babble(messages=HELLO, temperature="hot"), 400, "temperature", "must be a number, got 'hot'"),
        (CHAT, babble(messages=HELLO, seed=-1), 500, None, "expected non-negative integer"),
        (COMPLETIONS, babble(prompt=[1, 2]), 400, "prompt", "'prompt' must be one string"),
        (COMPLETIONS, babble(prompt="a", stream="yes"), 400, "stream", "'stream' must be true or false, got 'yes'"),
        (COMPLETIONS, babble(prompt="a", top_k=[1]), 400, None, "parameter 'top_k' has invalid type"),
        (EMBEDDINGS, {"model": "babble", "input": "a"}, 404, "model", "model 'babble' is no embedding model"),
        (EMBEDDINGS, {"model": "vectors", "input": [[1, 2]]}, 400, "input", "tokens are not supported"),
        (EMBEDDINGS, {"model": "vectors", "input": ["a", "?"]}, 500, None, "no questions"),
        (EMBEDDINGS, {"model": "vectors", "input": "a", "dimensions": 2}, 400, "dimensions", "no choice"),
        (EMBEDDINGS, {"model": "words", "input": "null"}, 500, None, "is no list of numbers in JSON"),
    ],
)
def test_errors_are_openai_s(
    ask: Any, way: str, path: str, body: Any, status: int, param: str | None, sentence: str
) -> None:
    reply = ask(path, body, way)
    error = reply.json["error"]
    assert (reply.status, error["param"]) == (status, param)
    assert error["type"] == ("server_error" if status == 500 else "invalid_request_error")
    assert sentence in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_a_compressed_body_is_refused_as_such(ask: Any, path: str) -> None:
    reply = ask(path, gzip.compress(b"{}"), **{"Content-Encoding": "gzip"})
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json["error"]["message"] == "Unsupported content-encoding, only 'identity' is supported."


def test_keys_open_the_models_that_they_are_for(ask: Any, server: Server) -> None:
    assert [each["id"] for each in ask("/v1/models").json["data"]] == ["adapted", "babble", "vectors", "words"]
    assert [each["id"] for each in ask("/v1/models", None, "vectors").json["data"]] == ["vectors"]
    assert ask("/v1/models/babble").json["id"] == "babble"
    missing = ask("/v1/models/nix")
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")
    for path, body in ((CHAT, babble(messages=HELLO)), (EMBEDDINGS, {"model": "babble", "input": "a"})):
        refused = ask(path, body, "vectors")
        assert (refused.status, refused.json["error"]["code"]) == (403, "permission_denied")
        unknown = fetch(server.http_port, path, body)
        assert (unknown.status, unknown.json["error"]["code"]) == (401, "invalid_api_key")
    assert ask("/v1/models/babble", None, "vectors").status == 403


def test_the_port_for_clients_of_triton_s_frontend(server: Server, keys: dict[str, str]) -> None:
    [port] = re.findall(rb"Started OpenAI HTTPService at 127.0.0.1:([0-9]+)", server.log)
    for way in ("lane", "road"):
        asked = fetch(int(port), COMPLETIONS, babble(prompt="Once"), headers={"X-API-Key": keys[way]})
        assert (asked.status, asked.json["object"]) == (200, "text_completion")


def test_texts_become_vectors(ask: Any) -> None:
    texts = [chr(97 + number) * (number + 1) for number in range(10)]
    expected = [[number + 1.0, 97.0 + number, 97.0 + number] for number in range(10)]
    said = ask(EMBEDDINGS, {"model": "vectors", "input": texts}).json
    assert [(each["index"], each["embedding"]) for each in said["data"]] == list(enumerate(expected))
    assert said["usage"] == {"prompt_tokens": 55, "total_tokens": 55}
    assert ask(EMBEDDINGS, {"model": "vectors", "input": "-"}).json["usage"] is None  # a count below zero is none
    [row] = ask(EMBEDDINGS, {"model": "vectors", "input": "j" * 10, "encoding_format": "base64"}).json["data"]
    assert np.frombuffer(base64.b64decode(row["embedding"]), "<f4").tolist() == [10.0, 106.0, 106.0]


@WAYS
def test_a_model_of_vllm_s_backend(ask: Any, way: str) -> None:
    asked = {"model": "words", "max_tokens": 5, "temperature": 0.5, "seed": 3, "stop": ["two "]}
    whole = ask(CHAT, {**asked, "messages": [{"role": "user", "content": "one two three"}]}, way).json
    assert whole["choices"][0]["message"]["content"] == "three "
    asked["stop"] = None
    said = ask(COMPLETIONS, {**asked, "prompt": "one two three"}, way).json
    assert (said["choices"][0]["text"], said["choices"][0]["finish_reason"]) == ("three two one three two ", "length")
    assert said["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    more = {"stream": True, "stream_options": {"include_usage": True}}
    *words, last, usage = chunks(ask(COMPLETIONS, {**asked, "prompt": "one two three", **more}, way))
    assert [each["choices"][0]["text"] for each in words] == ["three ", "two ", "one ", "three ", "two "]
    assert (last["choices"][0]["finish_reason"], usage["usage"]) == ("length", said["usage"])
    failed = ask(COMPLETIONS, {**asked, "prompt": "fail"}, way)
    assert (failed.status, failed.json["error"]["message"]) == (500, "Error generating stream: no words")
    vectors = ask(EMBEDDINGS, {"model": "words", "input": ["a bb ccc", "dddd e"], "dimensions": 2}, way).json
    assert [each["embedding"] for each in vectors["data"]] == [[1.0, 2.0], [4.0, 1.0]]
    assert vectors["usage"]["prompt_tokens"] == 5


def test_vllm_s_model_by_triton_s_own_endpoints(ask: Any) -> None:
    asked = {"text_input": "one two", "parameters": {"max_tokens": 2, "stream": False}}
    assert ask("/v2/models/words/generate", asked).json["text_output"] == "one twotwo one "
    asked["parameters"] = {"max_tokens": "2", "stream": True, "return_finish_reason": True}
    events = ask("/v2/models/words/generate_stream", asked).body.decode().strip().split("\n\n")
    told = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [(each["text_output"], each["finish_reason"]) for each in told] == [("two ", "None"), ("one ", "length")]
    tokens = {"text_input": "", "embedding_request": json.dumps({"input": [5, 7]}), "return_num_input_tokens": True}
    embedded = ask("/v2/models/words/generate", tokens).json
    assert (embedded["text_output"], embedded["num_input_tokens"]) == ("[5.0, 7.0]", 2)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("words", "LoRA feature is not enabled."),
        ("adapted", "LoRA grey is not supported, we currently support ['blue']"),
    ],
)
def test_an_adapter_that_vllm_s_model_lacks_has_triton_s_sentence(ask: Any, model: str, sentence: str) -> None:
    refused = ask(f"/v2/models/{model}/generate", {"text_input": "one", "parameters": {"lora_name": "grey"}})
    assert (refused.status, refused.json["error"]) == (500, sentence)


def test_a_body_that_a_lane_hands_over(server: Server, keys: dict[str, str]) -> None:
    body = json.dumps(babble(prompt="Once")).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nX-API-Key: {keys['lane']}\r\n"
    with Client(server) as client:
        whole = client.ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        chunked = client.ask(
            f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        )
    assert (whole.took_the_road, chunked.took_the_road) == (False, True)
    assert json.loads(whole.body)["choices"] == json.loads(chunked.body)["choices"]


def test_the_page_shows_what_its_commands_print(server: Server, keys: dict[str, str]) -> None:
    [curl] = re.findall(r"```sh\n(curl .*?)```", PAGE, re.DOTALL)
    [(python, shown)] = re.findall(r"```python\n(from openai .*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)
    command = curl.replace("localhost:8000", server.url).replace("curl -s", f"curl -s -H 'X-API-Key: {keys['lane']}'")
    said = json.loads(subprocess.run(["sh", "-ec", command], check=True, capture_output=True).stdout)
    assert said["choices"][0]["message"]["content"] == shown.splitlines()[0]
    pytest.importorskip("openai", reason="NOT CHECKED: OpenAI's client is not installed (pip install '.[dev]')")
    script = python.replace("localhost:8000", server.url).replace('api_key="none"', f"api_key='{keys['lane']}'")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(script, {})
    assert printed.getvalue() == shown


def test_openai_s_own_client(server: Server, keys: dict[str, str]) -> None:
    openai = pytest.importorskip(
        "openai", reason="NOT CHECKED: OpenAI's client is not installed (pip install '.[dev]')"
    )
    with openai.OpenAI(base_url=f"http://{server.url}/v1", api_key=keys["lane"], max_retries=0) as client:
        assert [each.id for each in client.models.list()] == ["adapted", "babble", "vectors", "words"]
        whole = client.chat.completions.create(**babble(messages=HELLO))
        stream = client.chat.completions.create(**babble(messages=HELLO, stream=True))
        assert "".join(each.choices[0].delta.content or "" for each in stream) == whole.choices[0].message.content
        text = client.completions.create(**babble(prompt="Once"), extra_body={"top_k": 4})
        assert text.usage.prompt_tokens == 4
        vectors = client.embeddings.create(model="vectors", input=["ab", "c"])  # in base64, unless told otherwise
        assert [each.embedding for each in vectors.data] == [[2.0, 97.0, 98.0], [1.0, 99.0, 99.0]]
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nix", messages=HELLO)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.NotFoundError, match="there is no /v1/images/generations") as missing:
            client.images.generate(model="babble", prompt="A shoal")
        assert (missing.value.type, missing.value.param, missing.value.code) == ("invalid_request_error", None, None)
        with pytest.raises(openai.APIStatusError, match="Not allowed on /v1/models/babble: use GET") as refused:
            client.models.delete("babble")
        assert (refused.value.status_code, refused.value.code) == (405, "method_not_supported")
        assert refused.value.response.headers["Allow"] == "GET"
        with pytest.raises(openai.BadRequestError, match="calls of tools"):
            client.chat.completions.create(**babble(messages=HELLO, tools=[{"type": "function"}]))
    with (
        openai.OpenAI(base_url=f"http://{server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.chat.completions.create(**babble(messages=HELLO))
