"""A model like BGE-M3 through the real processes: weights and vectors of tokens are those that its
linear layers make of transformers' hidden states."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.support.stack import Process, call, idle, proxy, running
from tests.support.tiny_encoders import (
    BEGIN,
    END,
    add_token_heads,
    build_encoder,
    encoded_vector,
    token_vectors,
    token_weights,
)

TEXTS = ["Hello", "Tell me a long story about a server.", "one one two one"]
SPARSE, COLBERT = "/v1/embeddings/sparse", "/v1/embeddings/colbert"


class Served:
    """The model's folder, and a proxy before a worker of it."""

    def __init__(self, model: Path, server: Process, worker: Process) -> None:
        self.model, self.server, self.worker = model, server, worker
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)

    def ask(self, path: str, server: Process | None = None, **fields: Any) -> Any:
        status, answer = call(f"{(server or self.server).url}{path}", fields)
        assert status == 200, answer
        return answer

    def refusal(self, path: str, **fields: Any) -> Any:
        status, answer = call(f"{self.server.url}{path}", fields)
        assert status == 400, answer
        return answer["error"]

    def sparse(self, text: str) -> dict[str, float]:
        """By id, what a text's tokens weigh most."""
        found: dict[str, float] = {}
        unused = {self.tokenizer.token_to_id(token) for token in (BEGIN, END)}
        ids = self.ids(text)
        for token, weight in zip(ids, token_weights(self.model, ids), strict=True):
            if token not in unused and weight > 0:
                found[str(token)] = max(weight, found.get(str(token), 0.0))
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("m3") / "model"
    add_token_heads(build_encoder(path, "xlm-roberta", pooling="cls_token"))
    with running(path) as stack:
        worker = stack.start("services.prefill")
        worker.wait_ready()
        yield Served(path, proxy(stack, [], [worker], []), worker)
        idle(worker)


def test_tokens_are_weighed(served: Served) -> None:
    for server in (served.server, served.worker):
        answer = served.ask(SPARSE, server, input=TEXTS, return_decoded=False, model="tiny")
        assert (answer["object"], answer["model"]) == ("list", "tiny")
        assert answer["usage"]["total_tokens"] == sum(len(served.ids(text)) for text in TEXTS)
        for index, (text, entry) in enumerate(zip(TEXTS, answer["data"], strict=True)):
            assert (entry["object"], entry["index"]) == ("sparse_embedding", index)
            assert entry["embedding"] == pytest.approx(served.sparse(text), rel=1e-4, abs=1e-5)
            assert entry["embedding"], "of some token the weight is above 0"


def test_weights_are_named_by_texts_unless_ids_are_asked_for(served: Served) -> None:
    (entry,) = served.ask(SPARSE, input=TEXTS[1])["data"]
    expected: dict[str, float] = {}
    for token, weight in served.sparse(TEXTS[1]).items():
        text = served.tokenizer.decode([int(token)], skip_special_tokens=False)
        expected[text] = max(weight, expected.get(text, 0.0))
    assert entry["embedding"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_tokens_have_vectors(served: Served) -> None:
    for server in (served.server, served.worker):
        answer = served.ask(COLBERT, server, input=TEXTS)
        assert answer["usage"]["prompt_tokens"] == sum(len(served.ids(text)) for text in TEXTS)
        for index, (text, entry) in enumerate(zip(TEXTS, answer["data"], strict=True)):
            assert (entry["object"], entry["index"]) == ("colbert_embedding", index)
            expected = token_vectors(served.model, served.ids(text))
            assert len(entry["embedding"]) == len(expected) == len(served.ids(text)) - 1
            for one, other in zip(entry["embedding"], expected, strict=True):
                assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_the_same_model_answers_one_vector_of_a_text(served: Served) -> None:
    data = served.ask("/v1/embeddings", input=TEXTS)["data"]
    for text, entry in zip(TEXTS, data, strict=True):
        expected = encoded_vector(served.model, served.ids(text), "cls")
        assert entry["embedding"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_what_cannot_be_answered_is_refused(served: Served, tmp_path: Path) -> None:
    for field, value in (("encoding_format", "base64"), ("left", ["a"]), ("dimensions", 8)):
        for path in (SPARSE, COLBERT):
            assert served.refusal(path, input="Hi", **{field: value})["param"] == field
    assert served.refusal(COLBERT, input="Hi", return_decoded=False)["param"] == "return_decoded"
    assert served.refusal(COLBERT, input=[5])["param"] == "input"
    with running(build_encoder(tmp_path / "plain", "xlm-roberta")) as stack:
        worker = stack.start("services.prefill")
        worker.wait_ready()
        plain = Served(stack.model, proxy(stack, [], [worker], []), worker)
        for path, file in ((SPARSE, "sparse_linear.pt"), (COLBERT, "colbert_linear.pt")):
            error = plain.refusal(path, input="Hi")
            assert (error["param"], error["code"]) == ("model", "unsupported_task")
            assert file in error["message"]
