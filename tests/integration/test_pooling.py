"""Vectors and scores through the real processes: equal to transformers' in every layout."""

import base64
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.conftest import ModelDir
from tests.support.clients import all_up, openai_messages
from tests.support.conversations import asking, picture, picture_cases
from tests.support.pooling_models import (
    embedding_model,
    picture_vector_of,
    reranker,
    score_of,
    vector_of,
)
from tests.support.reference import load
from tests.support.stack import Process, Stack, call, idle, metric, proxy, running
from tests.support.tiny_encoders import LABELS, build_encoder, encoded_vector, head_logits
from tests.support.waiting import until

TEXTS = ["Hello", "Tell me a long story about a server.", "How many circles are there?"]
REL, ABS = 1e-4, 1e-5


def asked(server: Process, path: str, **fields: Any) -> Any:
    """The answer; anything but a 200 fails."""
    status, answer = call(f"{server.url}{path}", fields)
    assert status == 200, answer
    return answer


def refused(server: Process, path: str, **fields: Any) -> Any:
    status, answer = call(f"{server.url}{path}", fields)
    assert status == 400, answer
    return answer["error"]


def vectors(answer: Any) -> list[list[float]]:
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    return [entry["embedding"] for entry in answer["data"]]


def near(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=REL, abs=ABS)


def ids_of(model: Path, text: str) -> list[int]:
    return list(load(model).tokenizer(text)["input_ids"])


@pytest.fixture(scope="module")
def pictures(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two encoders, a worker of each other role and one that does it all, of a model of pictures'
    vectors."""
    path = embedding_model(model_dir("qwen3_vl"), tmp_path_factory.mktemp("e") / "embedding")
    with running(path) as stack:
        flags = ("--max-num-batched-tokens", "100")
        for name in ("encoder", "encoder", "prefill", "pdfusion", "decode"):
            stack.start(f"services.{name}", *flags)
        for worker in stack.processes:
            worker.wait_ready()
        workers = list(stack.processes)
        yield stack
        for worker in workers:
            idle(worker)
        assert set(stack.stop()) == {0}
        assert not stack.segments.exists()


@pytest.fixture(scope="module")
def expected(pictures: Stack) -> list[list[float]]:
    return [picture_vector_of(pictures.model, case) for case in picture_cases()]


@pytest.fixture(scope="module")
def apart(pictures: Stack) -> Process:
    """A proxy before encoders and a prefill worker: E+P."""
    return proxy(pictures, pictures.processes[:2], [pictures.processes[2]], [])


def test_texts_are_embedded_by_a_prefill_worker(pictures: Stack, apart: Process) -> None:
    model = pictures.model
    for _ in range(2):  # the second time out of the prefix cache
        answer = asked(apart, "/v1/embeddings", input=TEXTS, model="tiny")
        near(vectors(answer), [vector_of(model, ids_of(model, text)) for text in TEXTS])
        tokens = sum(len(ids_of(model, text)) for text in TEXTS)
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == tokens
        assert (answer["model"], answer["object"]) == ("tiny", "list")
    (one,) = vectors(asked(apart, "/v1/embeddings", input=[5, 6, 7], dimensions=8))
    near([one], [vector_of(model, [5, 6, 7], 8)])
    assert metric(apart, "proxy:stage_seconds_count") > 0


def test_base64_is_the_same_vector(apart: Process) -> None:
    (floats,) = vectors(asked(apart, "/v1/embeddings", input="Hello"))
    (text,) = vectors(asked(apart, "/v1/embeddings", input="Hello", encoding_format="base64"))
    assert isinstance(text, str)
    assert array("f", base64.b64decode(text)).tolist() == floats
    pooled = asked(apart, "/pooling", input="Hello")["data"][0]
    assert (pooled["object"], pooled["data"]) == ("pooling", floats)


@pytest.mark.parametrize("way", ["e+p", "e+pd", "one process"])
def test_chats_with_pictures_are_embedded(
    way: str, pictures: Stack, apart: Process, expected: list[list[float]]
) -> None:
    """Through encoders, or by a worker that is asked itself; all at once, twice."""
    server = {"e+p": apart, "one process": pictures.processes[3]}.get(way)
    if server is None:
        server = proxy(pictures, pictures.processes[:2], [], [pictures.processes[4]])
    cases = picture_cases()

    def one(case: Any) -> list[float]:
        (vector,) = vectors(
            asked(
                server,
                "/v1/embeddings",
                messages=openai_messages(case),
                add_generation_prompt=True,
                model="tiny",
            )
        )
        return vector

    for _ in range(2):
        with ThreadPoolExecutor(len(cases)) as pool:
            near(list(pool.map(one, cases)), expected)


def test_a_relay_has_new_pictures_encoded(pictures: Stack) -> None:
    relay = proxy(
        pictures, pictures.processes[:2], [], [pictures.processes[4]], "--dialect", "openai"
    )
    case = asking(picture(50), "What is in this image?")
    fields = {"messages": openai_messages(case), "add_generation_prompt": True, "model": "tiny"}
    for path in ("/v1/embeddings", "/v1/embeddings/dense"):
        near(vectors(asked(relay, path, **fields)), [picture_vector_of(pictures.model, case)])


def test_a_model_of_vectors_scores_by_their_cosine(apart: Process) -> None:
    one, other = vectors(asked(apart, "/v1/embeddings", input=TEXTS[:2]))
    cosine = sum(a * b for a, b in zip(one, other, strict=True))
    scores = asked(apart, "/score", text_1=TEXTS[0], text_2=[TEXTS[0], TEXTS[1]])["data"]
    assert [entry["score"] for entry in scores] == pytest.approx([1.0, cosine], rel=REL, abs=ABS)
    table = asked(apart, "/v1/embeddings/similarity", left=TEXTS[:1], right=TEXTS[:2])
    near(table["similarity"], [[1.0, cosine]])
    ranked = asked(apart, "/rerank", query=TEXTS[0], documents=TEXTS[1::-1])["results"]
    assert [entry["index"] for entry in ranked] == [1, 0]
    long = "a story " * 5000
    for path, fields, param in (
        ("/score", {"text_1": "a", "text_2": ["a", long]}, "text_2[1]"),
        ("/rerank", {"query": long, "documents": ["a"]}, "query"),
        ("/v1/embeddings/similarity", {"left": ["a"], "right": ["a", long]}, "right[1]"),
    ):
        assert refused(apart, path, **fields)["param"] == param


def test_such_a_model_refuses_text_by_name(pictures: Stack, apart: Process) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    for server in (apart, pictures.processes[2]):
        for path, fields in (
            ("/v1/chat/completions", {"messages": messages}),
            ("/v1/chat/completions", {"messages": messages, "stream": True}),
            ("/v1/completions", {"prompt": "Hi"}),
            ("/v1/messages", {"messages": messages, "max_tokens": 4}),
        ):
            error = refused(server, path, **fields)
            assert "answers embeddings only, at /v1/embeddings" in error["message"], path
    assert asked_models(apart) == ["tiny"]


def asked_models(server: Process) -> list[str]:
    return [card["id"] for card in call(f"{server.url}/v1/models")[1]["data"]]


def test_what_is_too_long_is_named_with_the_limit(apart: Process) -> None:
    error = refused(apart, "/v1/embeddings", input=[[5], [5] * 4097])
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert "4097" in error["message"] and "4096" in error["message"]
    assert refused(apart, "/v1/embeddings", input="Hi", dimensions=65)["param"] == "dimensions"


def test_a_request_outlives_its_prefill_worker(pictures: Stack) -> None:
    extra = pictures.start("services.prefill")
    extra.wait_ready()
    server = proxy(pictures, [], [extra, pictures.processes[2]], [])
    assert asked(server, "/v1/embeddings", input=TEXTS)
    extra.kill()
    for _ in range(4):
        answer = asked(server, "/v1/embeddings", input=TEXTS)
        near(vectors(answer)[:1], [vector_of(pictures.model, ids_of(pictures.model, TEXTS[0]))])
    assert server.stop() == 0
    pictures.processes.remove(extra)


def test_a_master_places_what_is_not_decoded(
    start: Callable[..., Process], model_dir: ModelDir, tmp_path: Path
) -> None:
    master = start()
    path = embedding_model(model_dir("qwen3"), tmp_path / "embedding", bare=True)
    with running(path) as stack:
        worker = stack.start("services.prefill", "--master-url", master.url)
        worker.wait_ready()
        server = stack.start("proxy", "--master-url", master.url)
        server.wait_ready()
        until(lambda: all_up(server))
        answer = asked(server, "/v1/embeddings", input=TEXTS)
        model = model_dir("qwen3")
        near(vectors(answer), [vector_of(model, ids_of(model, text)) for text in TEXTS])
        assert metric(master, "master:placed_total") == len(TEXTS)
        assert metric(server, 'proxy:placements_total{by="master"}') == len(TEXTS)
        idle(worker)


@pytest.fixture(scope="module")
def scoring(
    model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, Process]]:
    """A prefill worker of a reranker, and a proxy before it."""
    path = reranker(model_dir("qwen3"), tmp_path_factory.mktemp("r") / "reranker")
    with running(path) as stack:
        worker = stack.start("services.prefill")
        worker.wait_ready()
        yield stack, proxy(stack, [], [worker], [])
        idle(worker)


def expected_scores(stack: Stack, query: str, documents: list[str]) -> list[float]:
    found = []
    for document in documents:
        text = (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the"
            " Query and the Instruct provided. Note that the answer can only be"
            ' "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query,'
            f" retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>:"
            f" {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
        ids = load(stack.model).tokenizer(text, add_special_tokens=False)["input_ids"]
        found.append(score_of(stack.model, list(ids)))
    return found


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_as_transformers_scores_them(
    path: str, scoring: tuple[Stack, Process]
) -> None:
    stack, server = scoring
    scores = expected_scores(stack, TEXTS[0], TEXTS)
    answer = asked(
        server, path, query=TEXTS[0], documents=[TEXTS[0], *({"text": text} for text in TEXTS[1:])]
    )
    results = answer["results"]
    order = sorted(range(len(TEXTS)), key=lambda index: -scores[index])
    assert [entry["index"] for entry in results] == order
    near([[e["relevance_score"]] for e in results], [[scores[i]] for i in order])
    assert [entry["document"]["text"] for entry in results] == [TEXTS[i] for i in order]
    assert answer["usage"]["total_tokens"] > 3 * 40
    best = asked(server, path, query=TEXTS[0], documents=TEXTS, top_n=1, return_documents=False)
    assert [(e["index"], "document" in e) for e in best["results"]] == [(order[0], False)]


def test_rtp_llms_reranker_answers_in_its_form(scoring: tuple[Stack, Process]) -> None:
    stack, server = scoring
    scores = expected_scores(stack, TEXTS[0], TEXTS)
    fields = {"query": TEXTS[0], "documents": TEXTS, "sorted": False, "top_k": 2}
    answer = asked(server, "/v1/reranker", **fields)
    assert [(e["index"], e["document"]) for e in answer["results"]] == list(enumerate(TEXTS[:2]))
    near([[e["relevance_score"]] for e in answer["results"]], [[score] for score in scores[:2]])
    assert answer["total_tokens"] > 3 * 40


def test_pairs_are_scored(scoring: tuple[Stack, Process]) -> None:
    stack, server = scoring
    scores = expected_scores(stack, TEXTS[0], TEXTS)
    for path in ("/score", "/v1/score"):
        data = asked(server, path, text_1=TEXTS[0], text_2=TEXTS)["data"]
        near([[entry["score"]] for entry in data], [[score] for score in scores])
    error = refused(server, "/v1/embeddings", input="Hi")
    assert "answers scores of texts, at /rerank" in error["message"]


def test_a_model_that_generates_answers_no_vectors(model_dir: ModelDir) -> None:
    with running(model_dir("qwen3")) as stack:
        worker = stack.start("services.decode")
        worker.wait_ready()
        own = proxy(stack, [], [], [worker], "--dialect", "tokens")
        other = proxy(stack, [], [], [worker])
        for server in (worker, own, other):
            for path, fields in (
                ("/v1/embeddings", {"input": "Hi"}),
                ("/score", {"text_1": "a", "text_2": "b"}),
                ("/rerank", {"query": "a", "documents": ["b"]}),
            ):
                error = refused(server, path, **fields)
                assert "generates text" in error["message"]
                assert error["param"] == "model"


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Path], Process]]:
    """Encoders of texts, by name: a worker of each, and a proxy before all."""
    root = tmp_path_factory.mktemp("encoders")
    models = {
        "vectors": build_encoder(root / "vectors"),
        "classes": build_encoder(root / "classes", labels=LABELS),
        "scores": build_encoder(root / "scores", labels=("LABEL_0",)),
    }
    with running(models["vectors"]) as stack:
        workers = [
            stack.start("services.prefill", models={name: path}) for name, path in models.items()
        ]
        for worker in workers:
            worker.wait_ready()
        urls = ",".join(worker.url for worker in workers)
        server = stack.start("proxy", "--prefill-servers-urls", urls, models=models)
        server.wait_ready()
        until(lambda: all_up(server, len(workers)))
        yield models, server
        for worker in workers:
            idle(worker)


def test_encoders_of_text_answer_vectors(encoders: tuple[dict[str, Path], Process]) -> None:
    """By the mean."""
    models, server = encoders
    path = models["vectors"]
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    found = vectors(asked(server, "/v1/embeddings", model="vectors", input=TEXTS))
    near(found, [encoded_vector(path, tokenizer.encode(text).ids) for text in TEXTS])


def test_encoders_of_text_answer_classes(encoders: tuple[dict[str, Path], Process]) -> None:
    models, server = encoders
    path, model = models["classes"], {"model": "classes"}
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    data = asked(server, "/classify", input=TEXTS, **model)["data"]
    logits = [head_logits(path, tokenizer.encode(text).ids) for text in TEXTS]
    near([entry["probs"] for entry in data], [one.softmax(-1).tolist() for one in logits])
    scores = asked(server, "/v1/classifier", input=TEXTS, **model)["score"]
    near(scores, [entry["probs"] for entry in data])
    assert [entry["label"] for entry in data] == [LABELS[int(one.argmax())] for one in logits]
    error = refused(server, "/v1/completions", prompt="Hi", **model)
    assert "classes of texts only" in error["message"]


def test_cross_encoders_answer_scores(encoders: tuple[dict[str, Path], Process]) -> None:
    models, server = encoders
    path, model = models["scores"], {"model": "scores"}
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    data = asked(server, "/score", text_1=TEXTS[0], text_2=TEXTS[1:], **model)["data"]
    pairs = [tokenizer.encode(TEXTS[0], text) for text in TEXTS[1:]]
    expected = [
        head_logits(path, pair.ids, pair.type_ids.index(1)).sigmoid().tolist() for pair in pairs
    ]
    near([[entry["score"]] for entry in data], expected)
    error = refused(server, "/score", text_1="a", text_2="story " * 200, **model)
    assert (error["param"], error["code"]) == ("text_2", "context_length_exceeded")
