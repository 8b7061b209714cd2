"""The error tree.

TriptychError
├── RequestError              the client's fault
│   ├── InvalidRequest        400  a field is missing, malformed or out of range
│   ├── Unauthorized          401
│   ├── ModelNotFound         404
│   ├── PayloadTooLarge       413
│   ├── UnsupportedMedia      415
│   └── RateLimited           429
├── ServiceError              ours; another try may succeed
│   ├── UpstreamError         502  a worker sent a malformed answer or none
│   ├── Unavailable           503  no worker can take the request
│   │   └── NotServing        503  this worker takes no requests: it drains, or has lost its engine
│   ├── DeadlineExceeded      504
│   └── InternalError         500
├── RequestAborted            499  the client left
├── TransferError             503  an embedding or KV transfer failed; the caller may recompute
│   ├── TransferTimeout
│   ├── EmbeddingLost         no worker has it any more: encode the item again
│   └── IncompatiblePeer      the two sides disagree on model, dtype, layout or version
└── ConfigError               a flag, variable or file is wrong; the process does not start
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from protocol.internal_names import ADDRESS, without_names

LONGEST_RETRY_S = 3600.0
"""What another process gives as a wait may be any number, and infinity has no digits."""


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error on its way between processes."""

    status: int
    message: str
    code: str
    param: str | None = None


class TriptychError(Exception):
    """Base of every error raised on purpose.

    `status` is the HTTP status it maps to, `code` a stable machine-readable word,
    `param` the request field at fault (None if no single field is), `retry_after_s` the seconds
    after which the client may ask again, within bounds (None if not said).
    """

    status = 500
    code = "internal_error"
    type = "server_error"
    # Its message is another process's, which may name addresses whatever the status is. What this
    # process says of a request may give the client's own words back.
    foreign = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message

    @property
    def retry_after_s(self) -> float | None:
        return self._retry_after_s

    @retry_after_s.setter
    def retry_after_s(self, seconds: float | None) -> None:
        if seconds is not None:
            seconds = None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_RETRY_S)
        self._retry_after_s = seconds

    def to_openai(self) -> dict[str, Any]:
        """The body OpenAI clients parse: {"error": {message, type, param, code}}. What went wrong
        in the fleet is told without the names of its processes, which are for the log."""
        message = self.message
        if self.status >= 500:
            message = without_names(message)
        elif self.foreign:
            message = without_names(message, ADDRESS)
        return {
            "error": {
                "message": message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class RequestError(TriptychError):
    type = "invalid_request_error"


class InvalidRequest(RequestError):
    status = 400
    code = "invalid_value"


class Unauthorized(RequestError):
    status = 401
    code = "invalid_api_key"


class ModelNotFound(RequestError):
    status = 404
    code = "model_not_found"


class PayloadTooLarge(RequestError):
    status = 413
    code = "payload_too_large"


class UnsupportedMedia(RequestError):
    status = 415
    code = "unsupported_media"


class RateLimited(RequestError):
    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"


class ServiceError(TriptychError):
    pass


class UpstreamError(ServiceError):
    status = 502
    code = "upstream_error"


class Unavailable(ServiceError):
    status = 503
    code = "unavailable"


class NotServing(Unavailable):
    """A worker answers so to every request until it is restarted: the request belongs elsewhere."""

    code = "not_serving"


class DeadlineExceeded(ServiceError):
    status = 504
    code = "deadline_exceeded"


class InternalError(ServiceError):
    pass


class RequestAborted(TriptychError):
    status = 499
    code = "aborted"


class TransferError(TriptychError):
    status = 503
    code = "transfer_failed"


class TransferTimeout(TransferError):
    code = "transfer_timeout"


class EmbeddingLost(TransferError):
    code = "embedding_lost"


class IncompatiblePeer(TransferError):
    code = "incompatible_peer"


class ConfigError(TriptychError):
    code = "config_error"


def error_info(error: BaseException) -> ErrorInfo:
    """An error as it travels; one not of our tree is an internal error."""
    if isinstance(error, TriptychError):
        return ErrorInfo(error.status, error.message, error.code, error.param)
    return ErrorInfo(500, f"{type(error).__name__}: {error}", "internal_error")


def from_worker(info: ErrorInfo) -> TriptychError:
    """As `from_info`, of a process whose addresses are no client's business."""
    error = from_info(info)
    error.foreign = True
    return error


def from_info(info: ErrorInfo) -> TriptychError:
    """Rebuild an error that another process sent, as the class that has its status.

    An unknown status becomes `UpstreamError`.
    """
    if info.code == ConfigError.code:
        return ConfigError(info.message)
    for kind in _tree(TriptychError):
        # Own attributes: a subclass inherits its parent's status without being what it stands for.
        if vars(kind).get("status") == info.status:
            return kind(info.message, param=info.param, code=info.code)
    return UpstreamError(info.message)


def from_openai(status: int, body: object) -> TriptychError:
    """Rebuild an error from an HTTP status and an OpenAI error body of another process."""
    error = body.get("error") if isinstance(body, dict) else None
    fields = error if isinstance(error, dict) else {}
    message = str(fields.get("message") or f"worker answered HTTP {status}")
    param, code = fields.get("param"), fields.get("code")
    return from_worker(
        ErrorInfo(
            status,
            message,
            code if isinstance(code, str) else "upstream_error",
            param if isinstance(param, str) else None,
        )
    )


def _tree(root: type[TriptychError]) -> list[type[TriptychError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]
