"""What a relayed request must bring before it is taken, and what its answer says to browsers.

The hot path has its own: a relayed request passes none of the application's middleware.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.server_options import CorsOptions
from services.http.access import ApiKeys
from services.http.browsers import JSON, cors_headers, is_structured, not_json

Pairs = tuple[tuple[bytes, bytes], ...]


class Entry:
    """Looked at once a request's headers are there; they are by lower-case name."""

    def __init__(self, keys: ApiKeys, cors: CorsOptions) -> None:
        self._keys = keys if keys else None
        self._cors = cors if cors.allowed_origins else None

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """`Unauthorized` without a key where one is needed, `UnsupportedMedia` unless the body is
        said to be JSON."""
        if self._keys is not None:
            error = self._keys.refusal(headers.get(b"authorization", b""))
            if error is not None:
                raise error
        content_type = headers.get(b"content-type", b"")
        if content_type != JSON and not is_structured(content_type):
            raise not_json(content_type)

    def extra(self, headers: Mapping[bytes, bytes]) -> Pairs:
        """Header fields of the answer."""
        return () if self._cors is None else cors_headers(self._cors, headers.get(b"origin", b""))
