"""Media URLs that are fetched, or refused."""

from typing import Any

import pytest

from protocol.errors import RequestError
from services.frontend.config import MediaConfig
from services.frontend.media.fetching import MediaFetcher

PARAM = "messages[0].content[1].image_url.url"


async def fetch(url: str, **options: Any) -> bytes:
    fetcher = MediaFetcher(MediaConfig(**options))
    try:
        return await fetcher.fetch(url, param=PARAM)
    finally:
        await fetcher.close()


async def refusal(url: str, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await fetch(url, **options)
    assert caught.value.param == PARAM
    return caught.value
