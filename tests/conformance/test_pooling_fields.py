"""docs/api.md for routes of vectors, scores and classes, row by row: each field does what its row
says, through a proxy of each dialect."""

import base64
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from protocol.pooling_fields import HARMLESS, REFUSED, WORKS
from protocol.request_fields import RequestField, Route
from tests.conformance.asking import DIALECTS, Dialect, Json
from tests.conformance.covering import crossed, examples, neutral
from tests.conftest import ModelDir
from tests.support.pooling_models import embedding_model, reranker
from tests.support.stack import call, idle, proxy, running
from tests.support.tiny_encoders import LABELS, add_token_heads, build_encoder

QUERY, TEXT, OTHER = "How many circles?", "There are three circles.", "A blue square."
PATHS: dict[Route, str] = {
    "embeddings": "/v1/embeddings", "scores": "/score", "rerank": "/rerank", "classes": "/classify",
    "similarity": "/v1/embeddings/similarity", "sparse": "/v1/embeddings/sparse",
    "colbert": "/v1/embeddings/colbert",
}  # fmt: skip
BASES: dict[Route, Json] = {
    "embeddings": {"input": TEXT},
    "scores": {"text_1": QUERY, "text_2": [TEXT, OTHER]},
    "rerank": {"query": QUERY, "documents": [TEXT, OTHER]},
    "classes": {"input": TEXT},
    "similarity": {"left": [QUERY], "right": [TEXT, OTHER]},
    "sparse": {"input": TEXT},
    "colbert": {"input": TEXT},
}
CHAT = {"input": ..., "messages": [{"role": "user", "content": TEXT}]}


def same(one: Any, other: Any) -> bool:
    """Whether answers are equal but for rounding, which depends on what was cached."""
    return _numbers(one) == pytest.approx(_numbers(other), rel=1e-4, abs=1e-5)


def _numbers(answer: Any) -> list[float]:
    if isinstance(answer, list | tuple):
        return [number for part in answer for number in _numbers(part)]
    return [float(answer)]


@dataclass
class Poolers:
    """A proxy of one dialect for each route, whose model answers there."""

    dialect: Dialect
    urls: dict[Route, str]

    def post(self, route: Route, **fields: Any) -> tuple[int, Any]:
        body = {name: value for name, value in {**BASES[route], **fields}.items()
                if value is not ...}  # fmt: skip
        return call(self.urls[route] + PATHS[route], body)

    def ask(self, route: Route, **fields: Any) -> Any:
        """What the route answers of its inputs; anything but a 200 fails."""
        status, answer = self.post(route, **fields)
        assert status == 200, answer
        if route == "rerank":
            return [(e["index"], e["relevance_score"]) for e in answer["results"]]
        if route == "similarity":
            return answer["similarity"]
        name = {"scores": "score", "classes": "probs"}.get(route, "embedding")
        found = [entry[name] for entry in answer["data"]]
        # Of weights by token the numbers, in the order of their names.
        return [
            [one[key] for key in sorted(one)] if isinstance(one, dict) else one for one in found
        ]

    def tokens(self, route: Route, **fields: Any) -> int:
        """Of the prompts."""
        return int(self.post(route, **fields)[1]["usage"]["prompt_tokens"])

    def refused(self, route: Route, param: str, **fields: Any) -> None:
        status, answer = self.post(route, **fields)
        assert (status, answer["error"]["param"]) == (400, param), answer


@pytest.fixture(scope="module")
def all_poolers(
    model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Dialect, Poolers]]:
    """For each model one worker, behind a proxy of each dialect."""
    root = tmp_path_factory.mktemp("poolers")
    found = {dialect: Poolers(dialect, {}) for dialect in DIALECTS}
    folders: dict[Route, Any] = {
        "embeddings": embedding_model(model_dir("qwen3"), root / "vectors"),
        "rerank": reranker(model_dir("qwen3"), root / "scores"),
        "classes": build_encoder(root / "classes", labels=LABELS),
        "sparse": add_token_heads(build_encoder(root / "tokens", "xlm-roberta")),
    }
    flags = ("--trust-request-chat-template", "--min-priority", "-5")
    with running(folders["embeddings"]) as stack:
        workers = {
            route: stack.start("services.decode", *flags, models={"tiny": folder})
            for route, folder in folders.items()
        }
        for worker in workers.values():
            worker.wait_ready()
        # Workers are here to stay: they need not be asked for their health all the time.
        rarely = ("--probe-interval", "5", *flags)
        for route, worker in workers.items():
            stack.model = folders[route]
            for dialect, poolers in found.items():
                front = proxy(stack, [], [], [worker], "--dialect", dialect, *rarely)
                poolers.urls[route] = front.url
        for poolers in found.values():
            urls = poolers.urls
            urls["scores"], urls["similarity"] = urls["rerank"], urls["embeddings"]
            urls["colbert"] = urls["sparse"]
        yield found
        for worker in workers.values():
            idle(worker)


@pytest.fixture(params=DIALECTS)
def poolers(request: pytest.FixtureRequest, all_poolers: dict[Dialect, Poolers]) -> Poolers:
    return all_poolers[request.param]


def same_as(route: Route, name: str, value: Any) -> Callable[[Poolers], None]:
    """The field is another's name."""

    def probe(poolers: Poolers) -> None:
        other = {"text_1": ("queries", "data_1"), "text_2": ("documents", "data_2")}
        first = next(base for base, names in other.items() if name in (base, *names))
        answer = poolers.ask(route, **{first: ..., name: value})
        assert same(answer, poolers.ask(route, **{first: value}))
        assert not same(answer, poolers.ask(route))

    return probe


def texts(poolers: Poolers, route: Route) -> None:
    (first,), both = poolers.ask(route), poolers.ask(route, input=[TEXT, OTHER])
    assert same(both[0], first) and not same(both[1], first)
    assert len(poolers.ask(route, input=[[5, 6], [7, 8]])) == 2
    poolers.refused(route, "input", input=[])


def messages(poolers: Poolers, route: Route) -> None:
    assert not same(poolers.ask(route, **CHAT), poolers.ask(route))
    poolers.refused(route, "input", messages=CHAT["messages"])


def model(poolers: Poolers, route: Route) -> None:
    assert poolers.post(route, model="tiny")[1]["model"] == "tiny"
    assert poolers.post(route, model="other")[0] == 404


def encoding_format(poolers: Poolers, route: Route) -> None:
    (text,) = poolers.ask(route, encoding_format="base64")
    assert same(array("f", base64.b64decode(text)).tolist(), poolers.ask(route)[0])


def dimensions(poolers: Poolers, route: Route) -> None:
    (cut,), (whole,) = poolers.ask(route, dimensions=8), poolers.ask(route)
    length = sum(x * x for x in whole[:8]) ** 0.5
    assert cut == pytest.approx([x / length for x in whole[:8]], rel=1e-4)
    poolers.refused(route, "dimensions", dimensions=65)


def normalize(poolers: Poolers, route: Route) -> None:
    (raw,) = poolers.ask(route, normalize=False)
    assert sum(x * x for x in raw) > 2.0
    (unit,) = poolers.ask(route, use_activation=True, normalize=False)
    assert sum(x * x for x in unit) == pytest.approx(1.0, rel=1e-4)


def truncate(poolers: Poolers, route: Route) -> None:
    assert poolers.tokens(route, truncate_prompt_tokens=3) == 3 < poolers.tokens(route)
    poolers.refused(route, "truncate_prompt_tokens", truncate_prompt_tokens=0)


def truncation_side(poolers: Poolers, route: Route) -> None:
    right = poolers.ask(route, truncate_prompt_tokens=3)
    left = poolers.ask(route, truncate_prompt_tokens=3, truncation_side="left")
    assert not same(left, right)
    poolers.refused(route, "truncation_side", truncation_side="left")


def add_special_tokens(poolers: Poolers, route: Route) -> None:
    added = poolers.tokens(route) - poolers.tokens(route, add_special_tokens=False)
    assert added == (0 if route == "embeddings" else 2)  # the causal model's tokenizer adds none


def of_chats(**fields: Any) -> Callable[[Poolers, Route], None]:
    """The field changes the vector of a chat."""

    def probe(poolers: Poolers, route: Route) -> None:
        assert not same(poolers.ask(route, **CHAT, **fields), poolers.ask(route, **CHAT))

    return probe


def chat_template_kwargs(poolers: Poolers, route: Route) -> None:
    template = {"chat_template": "{{ a }}{{ messages[0].content }}"}
    first, second = (poolers.ask(route, **CHAT, **template, chat_template_kwargs={"a": a})
                     for a in "xy")  # fmt: skip
    assert not same(first, second)


def mm_processor_kwargs(poolers: Poolers, route: Route) -> None:
    poolers.refused(route, "mm_processor_kwargs", **CHAT, mm_processor_kwargs={"max_pixels": 9})


def query(poolers: Poolers, route: Route) -> None:
    assert not same(poolers.ask(route, query=OTHER), poolers.ask(route))


def documents(poolers: Poolers, route: Route) -> None:
    objects = [{"text": TEXT}, {"text": OTHER}]
    assert same(poolers.ask(route, documents=objects), poolers.ask(route))
    assert same(poolers.ask(route, documents=[OTHER])[0][1], dict(poolers.ask(route))[1])
    poolers.refused(route, "documents", documents=[])


def top_n(poolers: Poolers, route: Route) -> None:
    assert same(poolers.ask(route, top_n=1), poolers.ask(route)[:1])
    assert len(poolers.ask(route, top_n=0)) == 2


def top_k(poolers: Poolers, route: Route) -> None:
    assert same(poolers.ask(route, top_k=1), poolers.ask(route)[:1])
    assert len(poolers.ask(route, top_k=1, top_n=2)) == 2


def unsorted(poolers: Poolers, route: Route) -> None:
    assert [index for index, _ in poolers.ask(route, sorted=False)] == [0, 1]
    assert [index for index, _ in poolers.ask(route, sorted=False, query=OTHER)] == [0, 1]


def side(poolers: Poolers, route: Route) -> None:
    assert not same(poolers.ask(route, left=[OTHER]), poolers.ask(route))
    assert len(poolers.ask(route, right=[TEXT])[0]) == 1
    poolers.refused(route, "left", left=[])


def return_documents(poolers: Poolers, route: Route) -> None:
    for wanted in (True, False):
        entry = poolers.post(route, return_documents=wanted)[1]["results"][0]
        assert ("document" in entry) == wanted


def instruction(poolers: Poolers, route: Route) -> None:
    other = poolers.ask(route, instruction="Find what rhymes")
    assert not same(other, poolers.ask(route))


def priority(poolers: Poolers, route: Route) -> None:
    assert poolers.ask(route, priority=-5)
    poolers.refused(route, "priority", priority=-6)


def cache_salt(poolers: Poolers, route: Route) -> None:
    """Nothing cached for others is used: the second time there is something of its own."""
    if route == "similarity":  # its answer has no usage
        assert same(poolers.ask(route, cache_salt="s"), poolers.ask(route))
        return
    # One pair: the prompts of two begin alike.
    alone: dict[Route, Json] = {
        "embeddings": {"input": TEXT * 8},
        "scores": {"text_2": [TEXT]},
        "rerank": {"documents": [TEXT]},
    }

    def cached() -> int:
        fields = {"cache_salt": f"{poolers.dialect} salt of {route}", **alone.get(route, {})}
        usage = poolers.post(route, **fields)[1]["usage"]
        return int((usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"])

    assert cached() == 0
    if route in alone:  # an encoder of texts caches nothing
        assert cached() > 0


def return_decoded(poolers: Poolers, route: Route) -> None:
    by_id, by_text = (
        poolers.post(route, return_decoded=wanted)[1]["data"][0]["embedding"]
        for wanted in (False, True)
    )
    assert by_id and all(name.isdigit() for name in by_id)
    assert not any(name.isdigit() for name in by_text)


def ec_transfer_params(poolers: Poolers, route: Route) -> None:
    """Their effect is seen where a relay has pictures encoded: `tests/integration/test_pooling`."""
    assert same(poolers.ask(route, **CHAT, ec_transfer_params={}), poolers.ask(route, **CHAT))
    poolers.refused(route, "ec_transfer_params", ec_transfer_params=5)


def request_id(poolers: Poolers, route: Route) -> None:
    if route in ("similarity", "sparse", "colbert"):  # their answers have no id
        assert poolers.ask(route, request_id="mine")
        return
    assert "mine" in poolers.post(route, request_id="mine")[1]["id"]


PROBES: dict[str, Callable[[Poolers, Route], None]] = {
    "input": texts,
    "messages": messages,
    "model": model,
    "encoding_format": encoding_format,
    "dimensions": dimensions,
    "normalize": normalize,
    "use_activation": normalize,
    "truncate_prompt_tokens": truncate,
    "truncation_side": truncation_side,
    "add_special_tokens": add_special_tokens,
    "add_generation_prompt": of_chats(add_generation_prompt=True),
    "continue_final_message": of_chats(continue_final_message=True),
    "chat_template": of_chats(chat_template="{{ messages[0].content }}!"),
    "chat_template_kwargs": chat_template_kwargs,
    "mm_processor_kwargs": mm_processor_kwargs,
    "query": query,
    "top_n": top_n,
    "top_k": top_k,
    "sorted": unsorted,
    "left": side,
    "right": side,
    "return_documents": return_documents,
    "instruction": instruction,
    "priority": priority,
    "cache_salt": cache_salt,
    "ec_transfer_params": ec_transfer_params,
    "request_id": request_id,
    "return_decoded": return_decoded,
}


def probe_of(row: RequestField, route: Route) -> Callable[[Poolers, Route], None]:
    if row.name in PROBES:
        return PROBES[row.name]
    if route == "rerank":
        return {"documents": documents}[row.name]
    value = OTHER if row.name in ("text_1", "queries", "data_1") else [OTHER]
    return lambda poolers, route: same_as(route, row.name, value)(poolers)


@pytest.mark.parametrize(("row", "route", "dialect"), crossed(WORKS))
def test_what_works_has_its_effect(
    row: RequestField, route: Route, dialect: Dialect, all_poolers: dict[Dialect, Poolers]
) -> None:
    probe_of(row, route)(all_poolers[dialect], route)


@pytest.mark.parametrize(("row", "route", "dialect"), crossed(REFUSED))
def test_what_is_refused_is_named(
    row: RequestField, route: Route, dialect: Dialect, all_poolers: dict[Dialect, Poolers]
) -> None:
    status, answer = all_poolers[dialect].post(route, **{row.name: row.example})
    error = answer["error"]
    assert (status, error["param"], error["code"]) == (400, row.name, "unsupported_parameter")


@pytest.mark.parametrize("route", PATHS)
def test_what_is_refused_may_ask_for_nothing(route: Any, poolers: Poolers) -> None:
    for fields in neutral(REFUSED, route):
        status, answer = poolers.post(route, **fields)
        assert status == 200, answer


@pytest.mark.parametrize("route", PATHS)
def test_what_is_harmless_changes_nothing(route: Any, poolers: Poolers) -> None:
    fields = examples(HARMLESS, route)
    assert same(poolers.ask(route, **fields), poolers.ask(route)), fields


@pytest.mark.parametrize("route", PATHS)
def test_an_unknown_field_is_refused(route: Any, poolers: Poolers) -> None:
    status, answer = poolers.post(route, temprature=1)
    assert (status, answer["error"]["param"]) == (400, "temprature")
