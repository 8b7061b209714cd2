"""Templates beside the model's own for chats.

Requests may bring one. A reranker is asked about a query and a document as Qwen3-Reranker was
taught, or by a chat template of the roles `query` and `document`.

Source of the reranker's words: the model card of Qwen3-Reranker (https://huggingface.co/Qwen).
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping

from protocol.errors import ConfigError, InvalidRequest
from services.frontend.prompts.guard import Guard, Guarded
from services.frontend.prompts.template import ChatTemplate

MAX_CHARS = 1 << 16  # of a template that a request brings
_KEPT = 16  # compiled templates, the latest used
_FIELD = "chat_template"


class RequestTemplates:
    """For the event loop and for threads that render. `trusted`: whether requests may bring one: it
    runs here, in a sandbox that bounds what it reaches but not the time that it takes."""

    def __init__(self, special_tokens: Mapping[str, str], *, trusted: bool) -> None:
        self._special_tokens = special_tokens
        self._trusted = trusted
        self._compiled: OrderedDict[str, ChatTemplate] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, source: str) -> ChatTemplate:
        """`InvalidRequest` if it may not be used, or does not compile."""
        if not self._trusted:
            raise InvalidRequest(
                "chat_template: this server takes none from requests; it is started with"
                " --trust-request-chat-template to do so",
                param=_FIELD,
                code="unsupported_parameter",
            )
        with self._lock:
            if (known := self._compiled.get(source)) is not None:
                self._compiled.move_to_end(source)
                return known
        # Without the lock, which the event loop must not wait for long. Two threads may make one
        # each; the later one is kept.
        made = self._compile(source)
        with self._lock:
            self._compiled[source] = made
            self._compiled.move_to_end(source)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made

    def _compile(self, source: str) -> ChatTemplate:
        if len(source) > MAX_CHARS:
            raise InvalidRequest(
                f"chat_template has {len(source)} characters, the limit is {MAX_CHARS}",
                param=_FIELD,
            )
        try:
            return ChatTemplate(source, self._special_tokens)
        except ConfigError as error:
            raise InvalidRequest(error.message, param=_FIELD) from None


_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_QWEN3 = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    "<Instruct>: {{ instruction }}\n<Query>: {{ query }}\n<Document>: {{ document }}<|im_end|>\n"
    # The last line break as an expression: jinja2 drops one at a template's end.
    '<|im_start|>assistant\n<think>\n\n</think>{{ "\\n\\n" }}'
)
_ROLES = ("query", "document")
_BOTH_ROLES = re.compile(r"['\"]query['\"].*['\"]document['\"]", re.DOTALL)


class PairTemplate:
    """Pairs as prompts, in which the texts' special tokens stay plain text."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str], guard: Guard
    ) -> None:
        """`templates`: the model's own, of which the default one counts if it has both roles."""
        own = templates.get("default", "")
        source = own if _BOTH_ROLES.search(own) else _QWEN3
        self._template = ChatTemplate(source, special_tokens)
        self._guard = guard

    def render(self, query: str, document: str, instruction: str | None) -> Guarded:
        """`InvalidRequest` if the template refuses the pair."""
        values = {
            "query": query,
            "document": document,
            "instruction": _INSTRUCTION if instruction is None else instruction,
        }
        marker = self._guard.marker(values)
        values = marker.mark(values)
        given = ("system", values["instruction"]), *((role, values[role]) for role in _ROLES)
        messages = [
            {"role": role, "content": text}
            for role, text in given
            if role != "system" or instruction is not None
        ]
        return marker.unmark(self._template.render(messages, variables=values))
