"""How the workers of a stack leave the fleet before they are restarted, and come back."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from triptych.launch.plan import Service
from triptych.launch.processes import LaunchError

_CALL_S = 5.0
_CLOSED = (401, 403)
_UNKNOWN = "unknown_instance"
# What a worker of vLLM has to do, and the KV that it holds for others to fetch.
_BUSY = re.compile(
    rb"^vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)(?:\{[^\n]*\})? "
    rb"([0-9.eE+-]+)$",
    re.MULTILINE,
)


class Membership(Protocol):
    """Of the workers of one kind of engine."""

    def leave(self, worker: Service) -> str:
        """The worker is to get no more requests. A reason why it cannot be asked, else ""."""

    def load(self, worker: Service) -> float:
        """What it still has to do; 0 once there is nothing, or if it does not answer."""

    def back(self, workers: Sequence[Service]) -> None:
        """They, or the master, have been started again. `LaunchError`."""


class OwnWorkers:
    """Our workers drain when they are told to, and register by themselves."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """`headers` open the workers' routes."""
        self._headers = headers

    def leave(self, worker: Service) -> str:
        try:
            call(f"{worker.url}/drain", self._headers, b"")
        except urllib.error.HTTPError as error:
            if error.code not in _CLOSED:
                raise LaunchError(f"{worker.url}/drain answers HTTP {error.code}") from None
            return f"{worker.name} takes no order to drain without TRIPTYCH_FLEET_KEY"
        except (OSError, http.client.HTTPException):
            return f"{worker.name} does not answer"
        return ""

    def load(self, worker: Service) -> float:
        try:
            return float(json.loads(call(f"{worker.url}/load", self._headers))["server_load"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return 0.0

    def back(self, workers: Sequence[Service]) -> None:
        """They have registered."""


class ListedWorkers:
    """Workers of vLLM: a master lists them, and no longer does while they are restarted."""

    def __init__(self, master: str, admin_key: str, listings: Sequence[Mapping[str, Any]]) -> None:
        """`listings`: what the master is told of each worker."""
        self._instances = f"{master}/instances"
        self._listings = {str(listing["url"]): listing for listing in listings}
        self._headers = {"content-type": "application/json", "x-api-key": admin_key}

    def leave(self, worker: Service) -> str:
        """`LaunchError` if the master cannot be told: it would send requests to a worker that ends,
        and vLLM's ends at once."""
        try:
            self._tell(worker, "DELETE")
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if _UNKNOWN not in said:
                raise LaunchError(f"the master does not let {worker.name} go: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            raise LaunchError(f"the master does not answer: {error}") from error
        return ""

    def load(self, worker: Service) -> float:
        try:
            return sum(map(float, _BUSY.findall(call(f"{worker.url}/metrics", {}))))
        except (OSError, http.client.HTTPException, ValueError):
            return 0.0

    def back(self, workers: Sequence[Service]) -> None:
        """They are listed again; the master finds out when each is well."""
        failed = []
        for worker in workers:
            try:
                self._tell(worker, "POST")
            except (OSError, http.client.HTTPException) as error:
                failed.append(f"{worker.name}: {error}")
        if failed:
            raise LaunchError(f"the master does not list {', '.join(failed)}")

    def _tell(self, worker: Service, method: str) -> None:
        body = json.dumps(self._listings[worker.url]).encode()
        call(self._instances, self._headers, body, method)


def call(
    url: str, headers: Mapping[str, str], body: bytes | None = None, method: str | None = None
) -> bytes:
    """What a server answers. `OSError`, `http.client.HTTPException`."""
    request = urllib.request.Request(url, body, dict(headers), method=method)
    with urllib.request.urlopen(request, timeout=_CALL_S) as response:
        return bytes(response.read())
