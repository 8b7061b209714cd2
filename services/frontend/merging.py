"""Several answers as one: a completion request may have many prompts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from protocol.openai_answers import (
    Answer,
    ChatCompletion,
    PromptTokensDetails,
    TextCompletion,
    Usage,
)


def merge(answers: Sequence[Answer]) -> Answer:
    """The answer to several prompts of one completion request, from those to each of them."""
    texts = [answer for answer in answers if isinstance(answer, TextCompletion)]
    first = texts[0]
    usages = [answer.usage for answer in texts if isinstance(answer.usage, Usage)]
    first.choices = [choice for answer in texts for choice in answer.choices]
    first.usage = total_usage(usages)
    return first


def merge_chats(answers: Sequence[Answer]) -> Answer:
    """The answer to a batch of chats, a choice of each in their order."""
    chats = [answer for answer in answers if isinstance(answer, ChatCompletion)]
    first, choices = chats[0], [choice for answer in chats for choice in answer.choices]
    for number, choice in enumerate(choices):
        choice.index = number
    first.choices, first.usage = choices, total_usage([answer.usage for answer in chats])
    return first


def total_usage(usages: Sequence[Usage]) -> Usage:
    details = [u.prompt_tokens_details for u in usages if u.prompt_tokens_details is not None]
    audio = sum(d.audio_tokens for d in details if isinstance(d.audio_tokens, int))
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.total_tokens for usage in usages),
        PromptTokensDetails(sum(d.cached_tokens for d in details), audio or UNSET)
        if details
        else None,
    )
