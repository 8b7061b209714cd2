"""Chat templates that requests bring, compiled and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from protocol.errors import ConfigError, InvalidRequest
from services.frontend.template import ChatTemplate

MAX_CHARS = 1 << 16
_KEPT = 16
_FIELD = "chat_template"


class RequestTemplates:
    """`trusted`: whether requests may bring one: it runs here, in a sandbox that bounds what it
    reaches but not the time that it takes."""

    def __init__(self, special_tokens: Mapping[str, str], *, trusted: bool) -> None:
        self._special_tokens = special_tokens
        self._trusted = trusted
        self._compiled: OrderedDict[str, ChatTemplate] = OrderedDict()

    def get(self, source: str) -> ChatTemplate:
        """`InvalidRequest` if it may not be used, or does not compile."""
        if not self._trusted:
            raise InvalidRequest(
                "chat_template: this server takes none from requests; it is started with"
                " --trust-request-chat-template to do so",
                param=_FIELD,
                code="unsupported_parameter",
            )
        if source not in self._compiled:
            self._compiled[source] = self._compile(source)
        self._compiled.move_to_end(source)
        if len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)
        return self._compiled[source]

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
