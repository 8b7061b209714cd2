"""What an operator must bring."""

from __future__ import annotations

import hmac

from fastapi import Request

from protocol.errors import Unauthorized


def check_admin_key(request: Request, key: str) -> None:
    """`Unauthorized` unless `X-API-Key` is the admin key, and there is one."""
    given = request.headers.get("x-api-key", "")
    if not key or not hmac.compare_digest(given.encode(), key.encode()):
        raise Unauthorized("X-API-Key is not the admin key" if key else "no admin key is set")
