"""Routes of a vLLM fleet that the relay passes on: one row a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.http.access import LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH


@dataclass(frozen=True)
class PassedRoute:
    """One route that workers may have."""

    path: str  # the proxy's; {…} in it are parameters
    does: str  # a sentence for the API's documentation
    method: Literal["GET", "POST", "DELETE"] = "POST"  # of HTTP, here and at the worker
    computes: bool = True  # takes a place among the requests that workers compute
    form: bool = False  # the body is multipart/form-data, not JSON
    optional: bool = False  # of all workers: those that lack it do no harm
    asked_as: str = ""  # the worker's own path, where it has another one

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def _cheap(path: str, does: str, method: Literal["GET", "POST"] = "POST") -> PassedRoute:
    return PassedRoute(path, does, method, computes=False)


_EMBED = "Embeddings of texts or messages."
_SCORE = "How well texts fit each other."
_RERANK = "Documents by how well they answer a query."

PASSED = (
    PassedRoute("/v1/embeddings", _EMBED),
    PassedRoute("/v2/embed", f"{_EMBED} In Cohere's form."),
    PassedRoute("/pooling", "What the model's pooler makes of an input."),
    PassedRoute("/classify", "Classes of texts, with their probabilities."),
    PassedRoute("/score", _SCORE),
    PassedRoute("/v1/score", _SCORE),
    PassedRoute("/rerank", _RERANK),
    PassedRoute("/v1/rerank", _RERANK),
    PassedRoute("/v2/rerank", _RERANK),
    PassedRoute("/v1/responses", "OpenAI responses. A response that is stored stays on a worker."),
    PassedRoute("/v1/messages", "Anthropic messages."),
    _cheap("/v1/messages/count_tokens", "How many tokens a message's prompt has."),
    PassedRoute("/v1/audio/transcriptions", "The text of a recording.", form=True),
    PassedRoute("/v1/audio/translations", "The text of a recording, in English.", form=True),
    PassedRoute("/v1/audio/speech", "A recording of a text."),
    PassedRoute("/v1/chat/completions/batch", "Several chats, answered together."),
    _cheap("/v1/chat/completions/render", "The prompt of a chat request."),
    _cheap("/v1/completions/render", "The prompt of a completion request."),
    _cheap("/tokenize", "Token ids of a text or of a chat."),
    _cheap("/detokenize", "Text of token ids."),
    PassedRoute(
        "/v1/embeddings/dense", f"{_EMBED} As RTP-LLM names it.", asked_as="/v1/embeddings"
    ),
    PassedRoute("/v1/embeddings/similarity", "How near texts are, in RTP-LLM's form."),
    PassedRoute("/v1/embeddings/sparse", "A weight for each token of a text, in RTP-LLM's form."),
    PassedRoute("/v1/embeddings/colbert", "A vector for each token, in RTP-LLM's form."),
    PassedRoute("/v1/classifier", "As /classify, which RTP-LLM names so.", asked_as="/classify"),
    PassedRoute("/v1/reranker", f"{_RERANK} As RTP-LLM names it.", asked_as="/v1/rerank"),
    _cheap("/tokenizer_info", "The tokenizer's configuration.", "GET"),
)
"""Placed on one worker each, like a chat request."""

_RESPONSE = "/v1/responses/{response_id}"

STORED = (
    PassedRoute(_RESPONSE, "A response that is stored.", "GET", computes=False),
    PassedRoute(_RESPONSE, "Forget a stored response.", "DELETE", computes=False),
    PassedRoute(f"{_RESPONSE}/input_items", "What a response answers.", "GET", computes=False),
    _cheap(f"{_RESPONSE}/cancel", "Stop a response that is made in the background."),
)
"""Sent to the worker that has the response."""


def _profile(path: str, does: str) -> PassedRoute:
    does += " Ours need --profile-folder, vLLM's --profiler-config; the others are passed over."
    return PassedRoute(path, does, computes=False, optional=True)


OPERATED = (
    _cheap(LOAD_ADAPTER_PATH, "Load a LoRA adapter on each worker, by lora_name and lora_path."),
    _cheap(UNLOAD_ADAPTER_PATH, "Unload a LoRA adapter from each worker."),
    _profile("/start_profile", "Start the profiler of each worker."),
    _profile("/stop_profile", "Stop the profiler of each worker."),
    _cheap("/reset_prefix_cache", "Empty the prefix cache of each worker."),
    _cheap("/reset_mm_cache", "Empty the cache of processed media of each worker."),
    _cheap("/reset_encoder_cache", "Empty the embedding cache of each worker."),
)
"""For operators, with the admin key: sent to every worker."""
