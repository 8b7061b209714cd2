"""What goes wrong on purpose: rules by flag or at run time, for some answers or for all."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.errors import InvalidRequest

FaultKind = Literal[
    "refuse",
    "hang",
    "die",
    "slow",
    "error",
    "drop",
    "garbage",
    "half_json",
    "content_type",
    "no_end",
    "no_done",
    "wrong_handle",
    "wrong_count",
]
_INFERENCE = ("/inference/v1/generate", "/inference/v1/encode", "/v1/chat/", "/v1/completions")


class Fault(msgspec.Struct, omit_defaults=True):
    """One rule, for requests whose path begins with one of `paths` (empty: all inference routes).

    refuse        the port is closed for `duration_s` (0: for good), open connections are cut
    slow          all work takes `factor` times as long for `duration_s` (0: until cleared)
    hang          no answer, or none after `after_tokens`; the connection stays open
    die           the process ends, with all its workers
    error         HTTP `status`; an error event once a stream has begun
    drop          the connection is cut
    garbage       bytes that are no JSON
    half_json     a JSON that ends in the middle
    content_type  an HTML page with status 200
    no_end        a stream that sends all its tokens, but no end; it stays open
    no_done       a stream that ends without its end mark
    wrong_handle  `kv_transfer_params` and `ec_transfer_params` of another request
    wrong_count   one token more than there is, in every choice
    """

    kind: FaultKind  # what goes wrong
    count: Annotated[int, Meta(ge=1)] | None = None  # how often, None for every time
    probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0  # of each request that the rule fits
    # Not before so many tokens of a stream are sent; for an answer that is not streamed, after it
    # was computed.
    after_tokens: Annotated[int, Meta(ge=0)] = 0
    status: Annotated[int, Meta(ge=400, le=599)] = 500  # of an error
    factor: Annotated[float, Meta(gt=0.0)] = 10.0  # of a slow worker
    duration_s: Annotated[float, Meta(ge=0.0)] = 0.0  # of what refuse and slow do
    paths: list[str] = []  # beginnings of paths, none for all inference routes

    @property
    def standing(self) -> bool:
        """True if it concerns the worker as a whole, not one answer."""
        return self.kind in ("refuse", "slow")


class Faults:
    """The rules of one worker; draws are the same for the same seed."""

    def __init__(self, rules: list[Fault], seed: int = 0) -> None:
        self.rules = list(rules)
        self.drawn = 0
        self._random = random.Random(seed)

    def draw(self, path: str) -> Fault | None:
        """The fault that befalls the next answer on `path`, if any: the first rule that applies.

        What is said about faults themselves is always answered.
        """
        if not self.rules or path == "/faults":
            return None
        for rule in self.rules:
            if rule.standing or not path.startswith(tuple(rule.paths) or _INFERENCE):
                continue
            if rule.probability < 1.0 and self._random.random() >= rule.probability:
                continue
            if rule.count is not None:
                rule.count -= 1
                if not rule.count:
                    self.rules.remove(rule)
            self.drawn += 1
            return rule
        return None


def parse_faults(data: bytes | str) -> list[Fault]:
    """A rule or a list of rules; `InvalidRequest` names what is wrong."""
    try:
        found = msgspec.json.decode(data, type=Fault | list[Fault])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"faults: {error}", param="faults") from None
    return found if isinstance(found, list) else [found]
