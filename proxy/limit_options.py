"""The proxy's flags for how much it takes at once, and how long each step of a request may take."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.options import count, option, seconds, size


@dataclass(frozen=True)
class LimitOptions:
    """The queue, timeouts and retries."""

    max_in_flight: int = count(
        4096,
        "Requests in the proxy beyond which a new one is answered with 503.",
        "requests",
        section="Queue",
    )
    max_per_worker: int = count(
        0,
        "Requests in progress per decode worker beyond which further ones wait in the queue. 0:"
        " twice the worker's own batch.",
        "requests",
        minimum=0,
    )
    max_queue: int = count(
        1024,
        "Requests that may wait in the proxy's queue; further ones are answered with 503. 0: none"
        " waits.",
        "requests",
        minimum=0,
    )
    max_queue_wait: float = seconds(
        30.0, "Predicted wait in the proxy's queue beyond which a request is answered with 503."
    )
    queue_timeout: float = seconds(
        60.0, "How long a request may wait in the proxy's queue before it is answered with 503."
    )
    tenant_share: float = option(
        1.0,
        "Share of what all workers run at once that one tenant, an API key, may have while another"
        " asks too. 1: all of it.",
        "share",
        above=0,
        maximum=1,
    )
    request_timeout: float = seconds(
        600.0, "How long a whole request may take.", section="Timeouts and retries"
    )
    encode_timeout: float = seconds(60.0, "How long one call of an encode worker may take.")
    prefill_timeout: float = seconds(120.0, "How long one call of a prefill worker may take.")
    first_token_timeout: float = seconds(
        120.0, "How long a worker may take to send the first event of a stream."
    )
    decode_timeout: float = seconds(
        300.0, "How long one call of a decode worker may take whose answer is not streamed."
    )
    stall_timeout: float = seconds(60.0, "Longest silence between two events of a stream.")
    connect_timeout: float = seconds(2.0, "How long connecting to a worker may take.")
    max_retries: int = count(
        3,
        "Attempts after the first one that a stage gets in a row without progress.",
        "attempts",
        minimum=0,
        maximum=1000,
        flags=("--decode-retries",),
    )
    failover_wait: float = seconds(
        30.0,
        "How long a request that has begun waits for a worker to be up, before it fails.",
        minimum=0,
    )
    retry_backoff: float = seconds(
        0.05, "Pause before the second attempt; each further pause is twice as long.", minimum=0
    )
    breaker_failures: int = count(
        5, "Failures in a row after which a worker gets no requests for a while.", "failures"
    )
    breaker_cooldown: float = seconds(
        10.0, "How long a worker gets no requests after --breaker-failures.", minimum=0
    )
    encode_at_once: int = count(
        32,
        "Calls that one encode worker gets at once.",
        "calls",
        maximum=65536,
    )
    max_answer_bytes: int = size(
        64 << 20, "Largest answer of a worker that is not streamed; a larger one fails the call."
    )
    probe_interval: float = seconds(
        1.0, "Time between two health probes of a worker.", minimum=0.01
    )

    @property
    def encode_patience(self) -> float:
        """Seconds for an item with all its tries. Not those of any request: several may wait for
        the same call, each with a deadline of its own."""
        return self.encode_timeout * (1 + self.max_retries)
