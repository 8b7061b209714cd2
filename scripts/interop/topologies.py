"""The fleets, and what is asserted of each: right answers, and who did the work."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from scripts.interop import cases
from scripts.interop.cases import CASES, Outcome
from scripts.interop.shared import Site, before_vllm
from scripts.interop.table import Table
from scripts.interop.vllm import Worker, metric
from tests.support.conversations import asking, picture
from tests.support.reference import reference_generate
from tests.support.stack import Process

ENCODED = r"Finish execute for mm hash (\w+)"
SAVED = r"Save cache successful for mm_hash (\w+)"
LOADED = r"Success load encoder cache for hash (\w+)"
LEFT_S = 15.0  # half the time for which vLLM keeps KV that no consumer fetches
PICTURES = 4  # different ones in all cases together


_HITS = "vllm:external_prefix_cache_hits_total"
_BYTES = "vllm:nixl_bytes_transferred_sum"
_REQUESTS = "vllm:request_success_total"
_FAILED = "vllm:nixl_num_failed_transfers_total"


class Watch:
    """What metrics of a worker, and its log, have gained since it was made."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._lines = {name: len(worker.logged(name)) for name in (ENCODED, SAVED, LOADED)}
        self._before = {
            name: metric(worker.url, name) for name in (_HITS, _BYTES, _REQUESTS, _FAILED)
        }

    def lines(self, pattern: str) -> list[str]:
        return self.worker.logged(pattern)[self._lines[pattern] :]

    def gained(self, name: str) -> int:
        return round(metric(self.worker.url, name) - self._before[name])


def reference(site: Site, worker: Worker) -> None:
    """What one vLLM answers, and that it says something: transformers answers the same."""
    found = {name: cases.ask(worker.url, CASES[name], False) for name in CASES}
    _references(site).write_text(json.dumps({name: asdict(one) for name, one in found.items()}))
    for name, messages in CASES.items():
        truth = reference_generate(site.model, messages, cases.TOKENS, ignore_eos=True)
        same = list(found[name].token_ids) == truth
        lead = f"closest call {min(found[name].leads):.3f}"
        site.table.add(f"{name}: as transformers", same, lead)


def _references(site: Site) -> Path:
    """Kept in a file, so that parts can be run one by one in the same folder."""
    return site.root / "references.json"


WAYS = ("one by one", "streamed, at once", "whole, at once")


def answers(site: Site, url: str, workers: Sequence[Worker], ways: Sequence[str] = WAYS) -> None:
    """Every case in each of these ways, against the one vLLM's answers; each time with nothing left
    in the workers' caches."""
    stored = json.loads(_references(site).read_text())
    for way in ways:
        for worker in workers:
            worker.forget()
        found = _asked(url, way)
        wrong = {name: found[name].differs(Outcome(**stored[name])) for name in CASES}
        wrong = {name: why for name, why in wrong.items() if why}
        site.table.add(f"answers of one vLLM, {way}", not wrong, wrong or f"{len(CASES)} requests")


def _asked(url: str, way: str) -> dict[str, Outcome]:
    if way == "one by one":
        return {name: cases.ask(url, CASES[name], False) for name in CASES}
    return cases.ask_all(url, stream=way.startswith("streamed"))


def encoder_used(table: Table, watch: Watch) -> None:
    saved = watch.lines(SAVED)
    table.add("encoder: pictures encoded and saved", len(set(saved)) == PICTURES, len(saved))
    count = watch.gained(_REQUESTS)
    table.add("encoder: requests", count > 0, count)


def embeddings_loaded(table: Table, watch: Watch, role: str) -> None:
    loaded, encoded = watch.lines(LOADED), watch.lines(ENCODED)
    table.add(f"{role}: embeddings loaded", len(set(loaded)) >= PICTURES, len(loaded))
    table.add(f"{role}: own vision tower at rest", not encoded, f"{len(encoded)} pictures encoded")


def kv_pulled(table: Table, watch: Watch) -> None:
    hits, moved, failed = (watch.gained(name) for name in (_HITS, _BYTES, _FAILED))
    table.add("decode: prompt tokens whose KV came from prefill", hits > 0, hits)
    table.add("decode: bytes read over NIXL", moved > 0 and not failed, moved)


def bytes_once(site: Site, front: Process) -> None:
    """A picture's bytes go to the encoder only: the others get its name and its size in tokens."""
    pixels = np.random.default_rng(0).integers(0, 255, (360, 360, 3), dtype=np.uint8)
    noise = asking(Image.fromarray(pixels), "What is in this image?")
    before = _sent(front)
    cases.ask(front.url, noise, False)
    size = len(json.dumps(cases.body(noise, False)))
    ratio = (_sent(front) - before) / size
    check = f"bytes to workers per client byte, {size >> 10} kB request"
    site.table.add(check, ratio < 1.1, f"{ratio:.3f}")


def _sent(front: Process) -> float:
    return metric(front.url, "triptych_proxy:upstream_bytes_total")


def prefill_decode(site: Site, prefill: Worker, decode: Worker) -> None:
    """P+D: pictures go to both, and the one that decodes could not see them."""
    with site.services() as ours:
        front = before_vllm(ours, "", prefill.url, decode.url)
        before, after = Watch(prefill), Watch(decode)
        answers(site, front.url, (prefill, decode))
        count = before.gained(_REQUESTS)
        site.table.add("prefill: requests", count >= 3 * len(CASES), count)
        kv_pulled(site.table, after)


def encode_and_rest(site: Site, encode: Worker, rest: Worker) -> None:
    """E+PD, the latter blind."""
    with site.services() as ours:
        front = before_vllm(ours, encode.url, "", rest.url, "--dialect", "openai")
        producer, consumer = Watch(encode), Watch(rest)
        answers(site, front.url, (encode, rest))
        encoder_used(site.table, producer)
        bytes_once(site, front)
        embeddings_loaded(site.table, consumer, "prefill+decode")


def all_three(site: Site, encode: Worker, prefill: Worker, decode: Worker) -> None:
    """E+P+D, all but the first blind."""
    with site.services() as ours:
        front = before_vllm(ours, encode.url, prefill.url, decode.url)
        producer, consumer, last = Watch(encode), Watch(prefill), Watch(decode)
        answers(site, front.url, (encode, prefill, decode))
        encoder_used(site.table, producer)
        bytes_once(site, front)
        embeddings_loaded(site.table, consumer, "prefill")
        kv_pulled(site.table, last)


def decode_without_ec(site: Site, encode: Worker, prefill: Worker, decode: Worker) -> None:
    """E+P+D as vLLM's own examples start it: decode takes no references, and gets the pictures."""
    with site.services() as ours:
        front = before_vllm(ours, encode.url, prefill.url, decode.url)
        consumer, last = Watch(prefill), Watch(decode)
        answers(site, front.url, (encode, prefill, decode))
        embeddings_loaded(site.table, consumer, "prefill")
        kv_pulled(site.table, last)
        client_leaves(site, front, (encode, prefill, decode))


def client_leaves(site: Site, front: Process, workers: Sequence[Worker]) -> None:
    """A client that goes away in the middle of its stream leaves nothing running, nothing held."""
    begun = cases.leave(front.url, CASES["two pictures"])
    deadline = time.monotonic() + LEFT_S
    left = time.monotonic()
    while (busy := _busy(workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    seconds = time.monotonic() - left
    site.table.add(
        "a client left: workers idle, no KV held", begun and not busy, f"{seconds:.1f} s"
    )


def _busy(workers: Sequence[Worker]) -> float:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return sum(metric(worker.url, f"vllm:{name}") for worker in workers for name in names)


def _ec(site: Site, role: str) -> tuple[str, str]:
    """Flags of our workers for the storage that vLLM's use, in vLLM's words."""
    config = {
        "ec_connector": "ECExampleConnector",
        "ec_role": role,
        # vLLM's files have no checksum.
        "ec_connector_extra_config": {
            "shared_storage_path": str(site.storage),
            "load_unchecked": True,
        },
    }
    return "--ec-transfer-config", json.dumps(config)


def our_encoder(site: Site, prefill: Worker, decode: Worker) -> None:
    """Embeddings of ours for vLLM's prefill and decode workers, both blind: by name alone, then
    beside the media, where vLLM must find them under our name although it hashes in another way."""
    with site.services() as ours:
        encode = ours.start("services.encoder", *_ec(site, "ec_producer"))
        encode.wait_ready()
        front = before_vllm(ours, encode.url, prefill.url, decode.url)
        consumer, last = Watch(prefill), Watch(decode)
        answers(site, front.url, (prefill, decode))
        bytes_once(site, front)
        embeddings_loaded(site.table, consumer, "prefill")
        kv_pulled(site.table, last)
    with site.table.under(f"{site.table.part}, --send-media"), site.services() as ours:
        encode = ours.start("services.encoder", *_ec(site, "ec_producer"))
        encode.wait_ready()
        front = before_vllm(ours, encode.url, prefill.url, decode.url, "--send-media")
        consumer = Watch(prefill)
        answers(site, front.url, (prefill, decode), WAYS[-1:])
        embeddings_loaded(site.table, consumer, "prefill")


def our_rest(site: Site, encode: Worker) -> None:
    """Embeddings of vLLM's encoder for prefill and decode workers of ours."""
    with site.services() as ours:
        rest = [
            ours.start(f"services.{role}", *_ec(site, "ec_consumer"))
            for role in ("prefill", "decode")
        ]
        for process in rest:
            process.wait_ready()
        prefill, decode = rest
        front = before_vllm(ours, encode.url, prefill.url, decode.url)
        producer = Watch(encode)
        answers(site, front.url, (encode,))
        encoder_used(site.table, producer)
        fetched = metric(decode.url, "triptych:kv_fetched_total")
        site.table.add("decode: requests whose KV came from prefill", fetched > 0, round(fetched))


def blind_alone(site: Site, worker: Worker) -> None:
    """Two pictures that no case has are the same to it: right answers are not its own."""
    pictures = (asking(picture(seed), "What is in this image?") for seed in (11, 12))
    one, two = (cases.ask(worker.url, messages, False) for messages in pictures)
    same = one.token_ids == two.token_ids
    site.table.add("alone, it takes any picture for any other", same)
