"""Workers of one family in every role, and a proxy per topology before them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.conversations import picture_cases, text_cases
from tests.support.reference import Messages, load, reference_generate
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.tiny_models import TEXT_FAMILIES

TOKENS = 8
EPD = "e+p+d"
TOPOLOGIES = (EPD, "e+pd", "one process")
EVERYWHERE = ("qwen3_vl", "gemma3", "llama")
"""Families whose tests run in every topology: embeddings also of layers in between, pictures that
see themselves both ways beside sliding windows, and no pictures."""
BEAMS: dict[str, Any] = {
    "max_new_tokens": 7, "num_beams": 4, "num_return_sequences": 4, "length_penalty": -3.0,
}  # fmt: skip
_ROLES = {EPD: ("encoder", "prefill", "decode"), "e+pd": ("encoder", "decode")}
_FLAGS = ("--max-num-batched-tokens", "200", "--max-num-seqs", "8")


@dataclass
class Topologies:
    """Workers and proxies are started when the first test asks for them; two topologies share the
    workers that both have."""

    stack: Stack
    workers: dict[str, Process] = field(default_factory=dict)
    _proxies: dict[str, Process] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return self.stack.model.name

    @property
    def text_only(self) -> bool:
        return self.model in TEXT_FAMILIES

    @property
    def cases(self) -> list[Messages]:
        return text_cases() if self.text_only else picture_cases()

    def server(self, topology: str) -> Process:
        """The proxy of a topology."""
        if topology not in self._proxies:
            self._proxies[topology] = self._proxy(topology)
        return self._proxies[topology]

    def _proxy(self, topology: str) -> Process:
        if topology == "one process":
            (one,) = self._started("pdfusion")
            return proxy(self.stack, [] if self.text_only else [one], [], [one])
        roles = [name for name in _ROLES[topology] if name != "encoder" or not self.text_only]
        by_role = dict(zip(roles, self._started(*roles), strict=True))
        encode, prefill, decode = (
            [by_role[name]] if name in by_role else [] for name in _ROLES[EPD]
        )
        return proxy(self.stack, encode, prefill, decode)

    def _started(self, *roles: str) -> list[Process]:
        """Workers of these roles, those that are new started at the same time."""
        new = {
            name: self.stack.start(f"services.{name}", *_FLAGS)
            for name in roles
            if name not in self.workers
        }
        for worker in new.values():
            worker.wait_ready()
        self.workers |= new
        return [self.workers[name] for name in roles]

    @cached_property
    def expected(self) -> list[list[int]]:
        """Of each case, for all topologies."""
        return [
            reference_generate(self.stack.model, case, TOKENS, ignore_eos=True)
            for case in self.cases
        ]

    @cached_property
    def beams(self) -> tuple[list[int], list[list[int]]]:
        """A token that ends beams early, and the beams of the last case."""
        reference = load(self.stack.model.resolve())
        inputs = reference.inputs(self.cases[-1])
        ends = [reference.beams(inputs, [], **BEAMS)[1][3]]
        return ends, reference.beams(inputs, ends, **BEAMS)

    @cached_property
    def bounded(self) -> list[tuple[dict[str, Any], list[int]]]:
        """A bound of the fourth case's pictures and none, and the answer then."""
        size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 9}
        return [
            (kwargs, reference_generate(
                self.stack.model, self.cases[3], TOKENS, ignore_eos=True, size=kwargs.get("size")
            ))
            for kwargs in ({"size": size}, {})
        ]  # fmt: skip


@contextmanager
def topologies_of(model: Path) -> Iterator[Topologies]:
    """In the end no worker holds anything, all end well, and nothing is left of them."""
    with running(model) as stack:
        started = Topologies(stack)
        yield started
        for worker in started.workers.values():
            idle(worker)
        assert set(stack.stop()) == {0}
        assert not stack.segments.exists()


def check_loaded_parts(topologies: Topologies) -> None:
    """Every worker has loaded what its role needs, and goes by its flags."""
    infos = {
        name: call(f"{worker.url}/server_info")[1] for name, worker in topologies.workers.items()
    }
    assert {info["max_num_seqs"] for info in infos.values()} == {8}
    parts = {name: set(info["parameter_bytes"]) for name, info in infos.items()}
    language, vision = {"language"}, set() if topologies.text_only else {"vision"}
    wanted = {"prefill": language, "decode": language, "pdfusion": language | vision}
    if not topologies.text_only:
        wanted["encoder"] = vision
    assert set(wanted) - {"pdfusion"} <= set(parts)
    assert parts == {name: wanted[name] for name in parts}
