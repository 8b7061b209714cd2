"""What clients are run against: a stack of workers and a proxy of each dialect before it."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.common.pictures import sample
from protocol.anthropic import MESSAGES_PATH
from protocol.openai import BATCH_PATH, CHAT_PATH, COMPLETIONS_PATH
from protocol.pooling import (
    CLASSIFY_PATH,
    COLBERT_PATH,
    EMBEDDINGS_PATHS,
    POOLING_PATH,
    RERANK_PATHS,
    RTP_CLASSIFY_PATH,
    RTP_RERANK_PATH,
    SCORE_PATHS,
    SIMILARITY_PATH,
    SPARSE_PATH,
)
from protocol.responses import RESPONSES_PATH
from scripts.clients.likelihoods import likelihoods
from tests.support.pooling_models import embedding_model, reranker
from tests.support.stack import Stack, call, running
from tests.support.tiny_encoders import LABELS, add_token_heads, build_encoder
from tests.support.tiny_models import build

Site = dict[str, Any]
DEMO = Path("models/demo")
DIALECTS = ("tokens", "openai")
_TEMPLATE = ("--chat-template", str(Path(__file__).parent / "template.jinja"))
_TEXT = sample("text", 0)
_PICTURE = sample("describe", 0)
_HI = [{"role": "user", "content": "Hi"}]
_MODEL = "tiny"


@contextmanager
def generating() -> Iterator[Mapping[str, str]]:
    """Master, E, P and D of the demonstration model; the URL of a proxy of each dialect."""
    with running(DEMO, forked=False) as stack:
        master = stack.start_plain("services.master").wait_ready()
        known = ("--master-url", master)
        roles = [
            stack.start(f"services.{r}", *known, *_TEMPLATE)
            for r in ("encoder", "prefill", "decode")
        ]
        for process in roles:
            process.wait_ready()
        yield _fronts(stack, master, *_TEMPLATE)


@contextmanager
def pooling() -> Iterator[Mapping[str, str]]:
    """Master and four models, of vectors, scores, classes and weights of tokens, a worker each;
    the URL of a proxy of each dialect, which serves all four."""
    with tempfile.TemporaryDirectory() as folder, running(DEMO, forked=False) as stack:
        root = Path(folder)
        causal = build("qwen3", root / "causal")
        models = {
            "vectors": embedding_model(causal, root / "vectors"),
            "scores": reranker(causal, root / "scores"),
            "classes": build_encoder(root / "classes", labels=LABELS),
            "tokens": add_token_heads(build_encoder(root / "tokens", "xlm-roberta")),
        }
        master = stack.start_plain("services.master").wait_ready()
        # A worker that decodes is asked by either dialect.
        workers = [
            stack.start("services.decode", "--master-url", master, models={name: path})
            for name, path in models.items()
        ]
        for worker in workers:
            worker.wait_ready()
        yield _fronts(stack, master, models=models)


def _fronts(
    stack: Stack, master: str, *flags: str, models: Mapping[str, Path] | None = None
) -> Mapping[str, str]:
    return {
        dialect: stack.start(
            "proxy", "--dialect", dialect, "--master-url", master, *flags, models=models
        ).wait_ready()
        for dialect in DIALECTS
    }


def site_of_texts(url: str) -> Site:
    """What cases are told: the answers that they must get are those of a plain request."""
    return {
        "url": url,
        "model": _MODEL,
        "text": _TEXT.text,
        "answer": _said(url, _TEXT.messages()),
        "messages": _PICTURE.openai_messages(),
        "seen": _said(url, _PICTURE.openai_messages()),
        "folder": str(DEMO.absolute()),
        "likelihoods": likelihoods(DEMO, url),
        "plain": _plain_texts(url),
        "only": [],  # every route
        "streamed": [CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH, MESSAGES_PATH],
    }


def _plain_texts(url: str) -> dict[str, Site]:
    chat: Site = {"model": _MODEL, "messages": _HI, "max_tokens": 4}
    text: Site = {"model": _MODEL, "prompt": "Hi", "max_tokens": 4}
    plain: dict[str, Site] = {
        CHAT_PATH: chat,
        f"{CHAT_PATH}/render": chat,
        BATCH_PATH: {**chat, "messages": [_HI, _HI]},
        COMPLETIONS_PATH: text,
        f"{COMPLETIONS_PATH}/render": text,
        RESPONSES_PATH: {"model": _MODEL, "input": "Hi", "max_output_tokens": 4},
        MESSAGES_PATH: chat,
        f"{MESSAGES_PATH}/count_tokens": {"model": _MODEL, "messages": _HI},
        "/tokenize": {"model": _MODEL, "prompt": "Hi"},
        "/detokenize": {"model": _MODEL, "tokens": [5]},
    }
    return _answered(url, plain)


def _answered(url: str, plain: dict[str, Site]) -> dict[str, Site]:
    """The same requests by path, each of which the proxy answers."""
    for path, body in plain.items():
        status, answer = call(url + path, body)
        if status != 200:
            raise RuntimeError(f"{path}: {status}: {answer}")
    return plain


def site_of_vectors(url: str) -> Site:
    """As `site_of_texts`, for the routes of models that answer no text."""
    pair = {"text_1": "a", "text_2": ["b", "c"]}
    ranked = {"query": "a", "documents": ["b", {"text": "c"}]}
    similar = {"left": ["a"], "right": ["b", "c"]}
    plain: dict[str, Site] = {
        **{path: {"model": "vectors", "input": "Hi"} for path in (*EMBEDDINGS_PATHS, POOLING_PATH)},
        **{path: {"model": "scores", **pair} for path in SCORE_PATHS},
        **{path: {"model": "scores", **ranked} for path in (*RERANK_PATHS, RTP_RERANK_PATH)},
        **{
            path: {"model": "classes", "input": "Hi"} for path in (CLASSIFY_PATH, RTP_CLASSIFY_PATH)
        },
        **{path: {"model": "tokens", "input": "Hi"} for path in (SPARSE_PATH, COLBERT_PATH)},
        SIMILARITY_PATH: {"model": "vectors", **similar},
    }
    answered = _answered(url, plain)
    return {
        "url": url,
        "model": "vectors",
        "plain": answered,
        "only": [*answered],  # the others are asked of a model that answers them
        "streamed": [],
    }


def _said(url: str, messages: object) -> str:
    body = {"model": _MODEL, "messages": messages, "temperature": 0}
    status, answer = call(url + CHAT_PATH, body)
    if status != 200:
        raise RuntimeError(f"{status}: {answer}")
    return str(answer["choices"][0]["message"]["content"])


Fleet = Callable[[], AbstractContextManager[Mapping[str, str]]]
FLEETS: Mapping[str, tuple[Fleet, Callable[[str], Site]]] = MappingProxyType(
    {"text": (generating, site_of_texts), "vectors": (pooling, site_of_vectors)}
)
"""What clients may need, and what of it their cases are told."""
