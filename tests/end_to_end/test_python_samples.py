"""The samples written in Python, served: the text pipeline and each of its models, the table, the stream, the page."""

import json
import re
import subprocess
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from scripts.topics import TOPICS, held_out
from tests.end_to_end.asking import fetch, tensors
from tests.end_to_end.asking import infer as infer_all
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server

Array = np.ndarray[Any, np.dtype[Any]]


def infer(server: Server, model: str, outputs: list[str], **inputs: Array) -> list[Array]:
    found = infer_all(server, model, inputs)
    return [found[name] for name in outputs]


def column(texts: list[str]) -> Array:
    return np.array([[text.encode()] for text in texts], np.object_)


def run(server: Server, command: str) -> str:
    """What a command of a page prints."""
    command = command.replace("localhost:8000", server.url)
    done = subprocess.run(["sh", "-ec", command], check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.stdout


def test_the_page_of_the_text_classifier_shows_what_happens(samples: Server) -> None:
    page = (SAMPLES / "text_classification" / "README.md").read_text()
    command, shown = re.findall(r"```(?:sh|json)\n(.*?)```", page, re.DOTALL)
    answer, expected = json.loads(run(samples, command)), json.loads(shown)
    assert answer.pop("probability") == pytest.approx(expected.pop("probability"), abs=1e-4)
    assert answer == expected


def test_the_pipeline_answers_as_its_models_one_by_one(samples: Server) -> None:
    texts = held_out()
    sent = column([sentence.text for sentence in texts])
    labels, probabilities = infer(samples, "text_classification", ["label", "probability"], text=sent)
    input_ids, attention_mask = infer(samples, "tokenizer", ["input_ids", "attention_mask"], text=sent)
    [logits] = infer(samples, "encoder", ["logits"], input_ids=input_ids, attention_mask=attention_mask)
    named, likelihoods = infer(samples, "postprocessing", ["label", "probability"], logits=logits)
    assert labels.tolist() == named.tolist()
    np.testing.assert_allclose(probabilities, likelihoods, rtol=1e-5)
    right = [list(TOPICS).index(label.decode()) == each.topic for [label], each in zip(labels, texts, strict=True)]
    assert np.mean(right) >= 0.8


def test_many_texts_at_once_get_their_own_labels(samples: Server) -> None:
    texts = {"snow and frost": b"weather", "the final match": b"sport", "a violin concert": b"music"}
    with triton.InferenceServerClient(samples.url, concurrency=16, network_timeout=DEADLINE_S) as client:
        sent = [
            (text, client.async_infer("text_classification", tensors({"text": column([text])})))
            for text in [*texts] * 16
        ]
        for text, request in sent:
            label = request.get_result(timeout=DEADLINE_S).as_numpy("label")
            assert label is not None
            assert label.tolist() == [[texts[text]]]


def test_vectors_come_out_of_the_table(samples: Server) -> None:
    table = np.load(SAMPLES / "embedding_table" / "1" / "vectors.npy")
    ids = np.arange(len(table))[::-1]
    np.testing.assert_array_equal(infer(samples, "embedding_table", ["vectors"], ids=ids)[0], table[::-1])
    with pytest.raises(InferenceServerException, match="id 640 is not in table 'vectors") as refused:
        infer(samples, "embedding_table", ["vectors"], ids=np.array([640]))
    assert refused.value.status() == "400"


def test_add_sub_adds_and_subtracts(samples: Server) -> None:
    left, right = np.array([1, 2, 3, 4], np.float32), np.array([4, 3, 2, 0.5], np.float32)
    total, difference = infer(samples, "add_sub", ["OUTPUT0", "OUTPUT1"], INPUT0=left, INPUT1=right)
    assert (total.tolist(), difference.tolist()) == ([5, 5, 5, 4.5], [-3, -1, 1, 3.5])


def test_repeat_streams_its_input_as_the_page_shows(samples: Server) -> None:
    page = (SAMPLES / "README.md").read_text()
    command, shown = re.findall(r"```(?:sh|text)\n(.*?)```", page, re.DOTALL)
    assert run(samples, command) == shown


def test_repeat_refuses_delays_that_do_not_fit(samples: Server) -> None:
    body = json.dumps({"IN": [7, 8, 9], "DELAY": [0], "WAIT": 0})
    reply = fetch(samples.http_port, "/v2/models/repeat/generate_stream", body)
    event = b'data: {"error":"IN and DELAY must have equal lengths"}\n\n'
    assert (reply.status, reply.body) == (400, event)


def ask_sequence(client: Any, sequence: str, number: int, *, start: bool, end: bool) -> int:
    given = tensors({"INPUT": np.array([[number]], np.int32)})
    result = client.infer(
        "simple_string_dyna_sequence", given, sequence_id=sequence, sequence_start=start, sequence_end=end
    )
    return int(result.as_numpy("OUTPUT")[0, 0])


def test_a_sequence_with_an_id_that_is_no_number_is_told_so_and_ends(samples: Server) -> None:
    with triton.InferenceServerClient(samples.url, network_timeout=DEADLINE_S) as client:
        assert ask_sequence(client, "herring", 3, start=True, end=False) == 3
        with pytest.raises(InferenceServerException, match="'herring' is no decimal number") as refused:
            ask_sequence(client, "herring", 4, start=False, end=True)
        assert refused.value.status() == "400"
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            ask_sequence(client, "herring", 4, start=False, end=True)


def test_the_sum_of_a_sequence_wraps_as_its_datatype_does(samples: Server) -> None:
    with triton.InferenceServerClient(samples.url, network_timeout=DEADLINE_S) as client:
        assert ask_sequence(client, "17", 2**31 - 1, start=True, end=False) == 2**31 - 1
        assert ask_sequence(client, "17", 1, start=False, end=False) == -(2**31)
        assert ask_sequence(client, "17", 0, start=False, end=True) == -(2**31) + 17
