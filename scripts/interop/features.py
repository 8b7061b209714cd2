"""Real vLLM workers with more than pictures and one process: what they answer through our relay is
what they answer when they are asked directly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.interop import cases, model
from scripts.interop.cases import CASES, Outcome
from scripts.interop.shared import Site, before_vllm
from scripts.interop.topologies import ENCODED, LOADED, SAVED, Watch
from scripts.interop.vllm import Worker, metric, post
from tests.support.audio_files import audio_file
from tests.support.clips import clip
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import Messages, reference_generate
from tests.support.stack import Process

CLIPS: Mapping[str, Messages] = {
    "a clip": asking(clip(1), "What happens here?"),
    "a longer clip": asking("Look", clip(2, frames=40, rate=4)),
    "two clips and a picture": asking(
        clip(3, size=(80, 120)), "then", picture(2, 160, 90), "and", clip(1), "Compare."
    ),
}
SOUNDS: Mapping[str, Messages] = {
    "a sound": asking(audio_file(1), "What do you hear?"),
    "a longer sound": asking("Listen:", audio_file(2, seconds=1.9)),
    "two sounds": asking(audio_file(3, seconds=0.5), "first this,", audio_file(1), "then that."),
}
PICTURES: Mapping[str, Messages] = {
    case: CASES[case] for case in ("text", "one picture", "two pictures")
}
TEXTS: Mapping[str, Messages] = {
    "text": asking("Hello"),
    "long text": asking(LONG),
    "text that repeats itself": asking("one two three four " * 12),
}
_ADMIN = "interop-admin"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"


def direct(worker: Worker, asked: Mapping[str, Messages], name: str = "tiny") -> dict[str, Outcome]:
    """What a worker answers by itself; leaves nothing in its caches."""
    found = {case: cases.ask(worker.url, asked[case], False, name) for case in asked}
    worker.forget()
    return found


def same(
    site: Site,
    front: Process,
    asked: Mapping[str, Messages],
    truth: Mapping[str, Outcome],
    *workers: Worker,
    name: str = "tiny",
) -> None:
    """The same through the relay: one by one, then all at once, streamed, with empty caches."""
    ways: Mapping[str, Callable[[], dict[str, Outcome]]] = {
        "one by one": lambda: {
            case: cases.ask(front.url, asked[case], False, name) for case in asked
        },
        "streamed, at once": lambda: cases.ask_all(front.url, True, asked, name),
    }
    for way, ask in ways.items():
        for worker in workers:
            worker.forget()
        found = ask()
        wrong = {case: found[case].differs(truth[case]) for case in asked}
        wrong = {case: why for case, why in wrong.items() if why}
        check = f"as the worker asked directly, {way}"
        site.table.add(check, not wrong, wrong or f"{len(asked)} requests")


@dataclass(frozen=True)
class Asked:
    """Requests, how many different items they hold together, and the model that takes them."""

    cases: Mapping[str, Messages]
    items: int
    model: Path


def behind_encoder(site: Site, asked: Asked, encode: Worker, rest: Worker) -> None:
    """A worker that can encode by itself: asked directly, it does; behind the relay an encoder has
    done it, and its log has no item that it encoded."""
    truth = direct(rest, asked.cases)
    with site.services(asked.model) as ours:
        front = before_vllm(ours, encode.url, "", rest.url, "--dialect", "openai")
        producer, consumer = Watch(encode), Watch(rest)
        same(site, front, asked.cases, truth, encode, rest)
        saved, loaded = set(producer.lines(SAVED)), set(consumer.lines(LOADED))
        own = consumer.lines(ENCODED)
        site.table.add("encoder: items encoded and saved", len(saved) == asked.items, len(saved))
        site.table.add("the other: items loaded", len(loaded) == asked.items, len(loaded))
        site.table.add("the other: items it encoded itself", not own, len(own))


def alone(site: Site, asked: Asked, worker: Worker) -> None:
    """No encoder: the relay passes the bytes on."""
    truth = direct(worker, asked.cases)
    with site.services(asked.model) as ours:
        front = before_vllm(ours, "", "", worker.url, "--dialect", "openai")
        same(site, front, asked.cases, truth, worker)


def ranks(site: Site, worker: Worker) -> None:
    """vLLM's log names each rank of a group."""
    found = sorted(set(worker.logged(r"world_size=2 rank=(\d)")))
    site.table.add("ranks of one group, by vLLM's log", found == ["0", "1"], ", ".join(found))


def engines(site: Site, worker: Worker) -> None:
    """Each engine of a data-parallel worker has answered."""
    name = 'vllm:request_success_total{engine="%d"'
    counts = [metric(worker.url, name % rank, prefix=True) for rank in (0, 1)]
    site.table.add("requests that each engine answered", min(counts) > 0, counts)


def drafting(site: Site, worker: Worker) -> None:
    """Guessed tokens change nothing: the answers are transformers' too."""
    truth = direct(worker, {**TEXTS, **PICTURES})
    for case, messages in TEXTS.items():
        expected = reference_generate(site.model, messages, cases.TOKENS, ignore_eos=True)
        right = list(truth[case].token_ids) == expected
        site.table.add(f"{case}: as transformers", right)
    with site.services() as ours:
        front = before_vllm(ours, "", "", worker.url, "--dialect", "openai")
        before = metric(worker.url, _DRAFTED), metric(worker.url, _ACCEPTED)
        same(site, front, {**TEXTS, **PICTURES}, truth, worker)
        guessed = metric(worker.url, _DRAFTED) - before[0]
        taken = metric(worker.url, _ACCEPTED) - before[1]
        site.table.add("guessed tokens that were right", taken > 0, f"{taken:.0f} of {guessed:.0f}")


def adapted(site: Site, worker: Worker) -> None:
    """An adapter that the worker has from its start, and one that our proxy has it load."""
    _, second = model.adapters(site.model)
    base, truth = direct(worker, PICTURES), direct(worker, PICTURES, "one")
    apart = sum(base[case].token_ids != truth[case].token_ids for case in PICTURES)
    site.table.add("answers that the adapter changes", apart == len(PICTURES), apart)
    with site.services() as ours:
        front = before_vllm(
            ours, "", "", worker.url, "--dialect", "openai", "--admin-api-key", _ADMIN
        )
        same(site, front, PICTURES, truth, worker, name="one")
        with site.table.under(f"{site.table.part}, the model itself"):
            same(site, front, PICTURES, base, worker)
        post(
            f"{front.url}/v1/load_lora_adapter",
            {"lora_name": "two", "lora_path": str(second)},
            60.0,
            {"X-API-Key": _ADMIN},
        )
        with site.table.under(f"{site.table.part}, loaded through the proxy"):
            same(site, front, PICTURES, direct(worker, PICTURES, "two"), worker, name="two")


def quantized(site: Site, worker: Worker) -> None:
    """A checkpoint in INT8."""
    config = json.loads((model.int8(site.root) / "config.json").read_text())
    form = config["quantization_config"]
    said = f"{form['quant_method']}, {form['format']}"
    site.table.add("checkpoint quantized", form["quant_method"] == "compressed-tensors", said)
    truth = direct(worker, TEXTS)
    with site.services(model.int8(site.root)) as ours:
        front = before_vllm(ours, "", "", worker.url, "--dialect", "openai")
        same(site, front, TEXTS, truth, worker)
