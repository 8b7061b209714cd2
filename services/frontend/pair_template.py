"""How a reranker is asked about a query and a document: as Qwen3-Reranker was taught, or by a chat
template of the roles `query` and `document`.

Source of the words: the model card of Qwen3-Reranker (https://huggingface.co/Qwen).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from services.frontend.guard import Guard, Guarded
from services.frontend.template import ChatTemplate

_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_QWEN3 = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    "<Instruct>: {{ instruction }}\n<Query>: {{ query }}\n<Document>: {{ document }}<|im_end|>\n"
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
