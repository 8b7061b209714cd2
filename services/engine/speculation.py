"""`--speculative-config`: whether an engine guesses tokens ahead, and how."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.errors import ConfigError

_Tokens = Annotated[int, Meta(ge=1, le=64)]


class Speculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Under the names of vLLM's object. Answers are the same as without it, token for token."""

    # ngram: what followed the last tokens before, in prompt or output; draft_model: what `model`
    # puts out; without a method the latter, if there is a model
    method: Literal["ngram", "draft_model", ""] = ""
    num_speculative_tokens: _Tokens = 4  # guessed at once for each request
    prompt_lookup_min: _Tokens = 2  # last tokens that must have stood together before
    prompt_lookup_max: _Tokens = 4  # last tokens that are looked for
    # requests of a step beyond which none are guessed for: checking takes time that they need
    disable_by_batch_size: Annotated[int, Meta(ge=1, le=65536)] = 8
    model: str = ""  # folder of the draft model, with the tokenizer of the large one


def parse_speculation(text: str) -> Speculation | None:
    """The flag's value, None if it is empty. `ConfigError` names what is wrong."""
    if not text:
        return None
    try:
        found = msgspec.json.decode(text, type=Speculation)
    except msgspec.DecodeError as error:
        raise ConfigError(f"--speculative-config: {error}") from None
    if not found.method:
        found = msgspec.structs.replace(found, method="draft_model" if found.model else "ngram")
    if (found.method == "draft_model") != bool(found.model):
        raise ConfigError(
            "--speculative-config: model: is the folder of method draft_model's model"
        )
    if found.prompt_lookup_min > found.prompt_lookup_max:
        raise ConfigError("--speculative-config: prompt_lookup_min is above prompt_lookup_max")
    return found
