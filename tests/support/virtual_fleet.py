"""A fleet of another engine's workers on virtual time, behind a real master that hears nothing of
them but proxies' reports."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import TriptychError
from protocol.placement import Finished, MediaNeed, Placement, ScheduleRequest
from protocol.registry import InstanceInfo, InstanceRole
from services.admission.ticket import Ticket
from services.master.config import MasterConfig
from services.master.master import Master

TTFT_SLO_S, TPOT_SLO_S = 1.0, 0.03
ENCODE_S, PREFILL_TOKEN_S = 0.04, 1e-4
STEP_S, STEP_REQUEST_S = 0.010, 0.0005
CHUNK = 100  # tokens of prompts in a step of a worker that decodes too


@dataclass
class Request:
    name: str
    tokens: int
    output: int
    at: float
    tenant: str = ""
    placement: Placement | None = None
    asked: float = 0.0
    first: float = 0.0
    done: float = 0.0
    tokens_out: int = 0
    computed: int = 0  # tokens of its prompt, where it decodes
    refused: str = ""

    @property
    def good(self) -> bool:
        tpot = (self.done - self.first) / max(1, self.output - 1)
        return self.done > 0.0 and self.first - self.at <= TTFT_SLO_S and tpot <= TPOT_SLO_S


@dataclass
class Decoder:
    """Every step gives each of its requests a token; more of them make it longer, and so does a
    piece of a prompt, which has its first token in the step that ends it."""

    active: list[Request] = field(default_factory=list)
    prompts: list[Request] = field(default_factory=list)
    stepping: bool = False


class VirtualFleet:
    """Encode, prefill, decode one after the other, as a relay drives them; without workers for
    prefill those for decode do both."""

    def __init__(self, encode: int, prefill: int, decode: int, **config: Any) -> None:
        settings = {"seed": 1, "lease": 1e9, "request_ttl": 1e6, **config}
        self.master = Master(MasterConfig(**settings))
        self.now = 0.0
        self.requests: list[Request] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._free: dict[str, float] = {}
        self._decoders: dict[str, Decoder] = {}
        last: InstanceRole = "decode" if prefill else "prefill_decode"
        roles: dict[InstanceRole, int] = {"encode": encode, "prefill": prefill, last: decode}
        for role, count in roles.items():
            for number in range(count):
                name = f"{role}{number}"
                info = InstanceInfo(name, role, f"http://{name}:1", "m", dialect="openai")
                self.master.register(info, 0.0)
                self._free[name] = 0.0
                self._decoders[name] = Decoder()

    def after(self, seconds: float, run: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), run))

    def run(self, rate: float, seconds: float, output: int, seed: int = 1) -> float:
        """Good requests a second, of those that came in so many seconds."""
        rng, at = random.Random(seed), 0.0
        while (at := at + rng.expovariate(rate)) < seconds:
            request = Request(f"r{len(self.requests)}", rng.choice([1000, 2000]), output, at)
            self.requests.append(request)
            heapq.heappush(self._events, (at, next(self._order), self._arrival(request)))
        for tick in range(int(seconds * 10)):
            heapq.heappush(self._events, (tick / 10, next(self._order), self._tick))
        while self._events:
            self.now, _, run = heapq.heappop(self._events)
            run()
        return sum(request.good for request in self.requests) / seconds

    def _tick(self) -> None:
        self.master.expire(self.now)

    def _arrival(self, request: Request) -> Callable[[], None]:
        return lambda: self._ask(request)

    def _ask(self, request: Request) -> None:
        media = [MediaNeed(request.name, 256)]
        wanted = ScheduleRequest(
            request.name, request.tokens, model="m", items=media, predicted=True,
            max_tokens=request.output, tenant=request.tenant,
        )  # fmt: skip
        try:
            placed = self.master.schedule(wanted, self.now)
        except TriptychError as error:
            request.refused = error.code
            return
        if isinstance(placed, Ticket):
            ticket = placed
            ticket.when_ended(lambda: self._answered(request, ticket.outcome))
            return
        self._answered(request, placed)

    def _answered(self, request: Request, outcome: Any) -> None:
        if not isinstance(outcome, Placement):
            request.refused = outcome.code
            return
        request.placement = outcome
        (item,) = outcome.encoders
        assert item.target is not None
        self._serve(item.target.instance_id, ENCODE_S, lambda: self._encoded(request))

    def _serve(self, worker: str, seconds: float, then: Callable[[], None]) -> None:
        """One call after the other."""
        self._free[worker] = max(self._free[worker], self.now) + seconds
        asked = self.now
        self.after(self._free[worker] - self.now, lambda: self._over(asked, then))

    def _over(self, asked: float, then: Callable[[], None]) -> None:
        self._asked = asked
        then()

    def _encoded(self, request: Request) -> None:
        elapsed = self.now - self._asked
        self._tell(Finished(request.name, "encode", [request.name], elapsed_s=elapsed))
        assert request.placement is not None
        if request.placement.prefill is None:
            request.asked = self.now
            decoder = self._decoders[request.placement.decode.instance_id]
            decoder.prompts.append(request)
            self._wake(decoder)
            return
        at = request.placement.prefill.instance_id
        self._serve(at, PREFILL_TOKEN_S * request.tokens, lambda: self._prefilled(request))

    def _prefilled(self, request: Request) -> None:
        self._tell(Finished(request.name, "prefill", elapsed_s=self.now - self._asked))
        assert request.placement is not None
        decoder = self._decoders[request.placement.decode.instance_id]
        request.asked = self.now
        decoder.active.append(request)
        self._wake(decoder)

    def _wake(self, decoder: Decoder) -> None:
        if not decoder.stepping:
            self._step(decoder)

    def _step(self, decoder: Decoder) -> None:
        decoder.stepping = bool(decoder.active or decoder.prompts)
        if decoder.stepping:
            batch, left = list(decoder.active), CHUNK
            while decoder.prompts and left:
                request = decoder.prompts[0]
                tokens = min(left, request.tokens - request.computed)
                request.computed, left = request.computed + tokens, left - tokens
                if request.computed == request.tokens:
                    batch.append(decoder.prompts.pop(0))
            computing_s = PREFILL_TOKEN_S * (CHUNK - left)
            seconds = STEP_S + STEP_REQUEST_S * len(batch) + computing_s
            self.after(seconds, lambda: self._stepped(decoder, batch))

    def _stepped(self, decoder: Decoder, batch: list[Request]) -> None:
        for request in batch:
            if request.computed and not request.tokens_out:
                decoder.active.append(request)
                self._tell(Finished(request.name, "prefill", elapsed_s=self.now - request.asked))
            request.tokens_out += 1
            request.first = request.first or self.now
            if request.tokens_out == request.output:
                request.done = self.now
                decoder.active.remove(request)
                self._tell(
                    Finished(
                        request.name, elapsed_s=self.now - request.asked,
                        first_s=request.first - request.asked, output_tokens=request.output,
                    )
                )  # fmt: skip
        self._step(decoder)

    def _tell(self, report: Finished) -> None:
        self.master.finished(report, self.now)
        self.master.pump(self.now)
