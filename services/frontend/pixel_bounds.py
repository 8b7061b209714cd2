"""How large pictures may become: what `mm_processor_kwargs` ask for, as transformers takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from protocol.bounds import INT32_MAX
from protocol.errors import ConfigError, InvalidRequest
from protocol.openai_refusals import refusal_of

PARAM = "mm_processor_kwargs"
_Pixels = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class PixelBounds(NamedTuple):
    """Least and most area of a picture after it is resized, in pixels."""

    least: int
    most: int


class _Size(msgspec.Struct, forbid_unknown_fields=True):
    """Areas in pixels, whatever the names say: so transformers' processors of Qwen's models have
    them."""

    shortest_edge: _Pixels | None = None
    longest_edge: _Pixels | None = None


class _Images(msgspec.Struct, forbid_unknown_fields=True):
    min_pixels: _Pixels | None = None
    max_pixels: _Pixels | None = None
    size: _Size | None = None


class _Asked(_Images, forbid_unknown_fields=True):
    images_kwargs: _Images | None = None


def bounds_of(kwargs: Mapping[str, Any], usual: PixelBounds) -> PixelBounds:
    """What options ask for, with the `usual` bounds where they say nothing. `min_pixels` and
    `max_pixels` win over `size`. `InvalidRequest` names the option that is not known or wrong."""
    try:
        asked = msgspec.convert(kwargs, _Asked)
    except msgspec.ValidationError as error:
        raise refusal_of(error, f"{PARAM}.") from None
    images: _Images = asked.images_kwargs or asked
    size = images.size or _Size()
    bounds = PixelBounds(
        images.min_pixels or size.shortest_edge or usual.least,
        images.max_pixels or size.longest_edge or usual.most,
    )
    if bounds.least > bounds.most:
        raise InvalidRequest(
            f"{PARAM}: min_pixels is {bounds.least}, more than max_pixels, {bounds.most}",
            param=PARAM,
        )
    return bounds


def parse_kwargs(text: str) -> dict[str, Any]:
    """The value of --mm-processor-kwargs, a JSON object or empty; `ConfigError` otherwise."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"--mm-processor-kwargs: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("--mm-processor-kwargs: not a JSON object")
    return found
