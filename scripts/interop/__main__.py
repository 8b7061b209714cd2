"""`python -m scripts.interop [--venv DIR] [--work DIR] [--json FILE] [PART...]`; see PARTS."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from scripts.interop import features, fleet, launched, load, model, topologies
from scripts.interop.shared import Site, before_vllm
from scripts.interop.table import Table
from tests.support.stack import proxy

DEMO = Path("models/demo")
PROMPTS = 60


def two(site: Site) -> None:
    """One vLLM that does it all, P+D with it, E+PD, and E+P+D where decode knows no EC."""
    with site.table.under("one vLLM"):
        whole, decode = site.vllm("whole", "decode")
        topologies.reference(site, whole)
    with site.table.under("P+D"):
        topologies.prefill_decode(site, whole, decode)
    with site.table.under("E+PD"):
        encode, decode, whole = site.vllm("encode", "decode", "whole")
        topologies.blind_alone(site, decode)
        topologies.encode_and_rest(site, encode, decode)
    with site.table.under("E+P+D without EC at D"):
        encode, prefill, whole = site.vllm("encode", "decode", "whole")
        topologies.decode_without_ec(site, encode, prefill, whole)


def three(site: Site) -> None:
    """E+P+D, then under load."""
    with site.table.under("E+P+D"):
        encode, prefill, decode = site.vllm("encode", "prefill", "decode")
        topologies.all_three(site, encode, prefill, decode)
        with site.services() as ours:
            front = before_vllm(ours, encode.url, prefill.url, decode.url)
            load.bench(site, front.url, site.model, "tiny", PROMPTS)


def mixed(site: Site) -> None:
    """vLLM's encoder for workers of ours, and ours for vLLM's."""
    with site.table.under("vLLM's E, our P+D"):
        encode, prefill, decode = site.vllm("encode", "prefill", "decode")
        topologies.our_rest(site, encode)
    with site.table.under("our E, vLLM's P+D"):
        prefill, decode = site.vllm("prefill", "decode")
        topologies.our_encoder(site, prefill, decode)


def ours(site: Site) -> None:
    """All workers ours, vLLM's load on them through a proxy of each dialect."""
    site.vllm()
    with site.services(DEMO) as stack:
        roles = [stack.start(f"services.{role}") for role in ("encoder", "prefill", "decode")]
        for process in roles:
            process.wait_ready()
        encode, prefill, decode = roles
        for dialect in ("tokens", "openai"):
            front = proxy(stack, [encode], [prefill], [decode], "--dialect", dialect)
            for name, kind in (("pictures", load.PICTURES), ("completions", load.COMPLETIONS)):
                with site.table.under(f"ours, {dialect}, {name}"):
                    load.bench(site, front.url, DEMO.absolute(), "tiny", 2 * PROMPTS, kind)


def scripts(site: Site) -> None:
    """The launch script with ENGINE=vllm, E+P+D and E+2PD."""
    with site.table.under("one vLLM"):
        topologies.reference(site, *site.vllm("whole"))
    site.vllm()
    for shape, numbers in launched.SHAPES.items():
        with site.table.under(f"ENGINE=vllm, {shape}"):
            launched.check(site, shape, numbers)


def fleets(site: Site) -> None:
    """E+2PD under a load that repeats itself, behind three proxies."""
    site.vllm()
    with site.table.under("1E 2PD under load"):
        fleet.compare(site)


def video(site: Site) -> None:
    """Clips that the relay passes on."""
    asked = features.Asked(features.CLIPS, 4, site.model)
    with site.table.under("video"):
        features.alone(site, asked, *site.vllm("rest"))


def video_encoded(site: Site) -> None:
    """Clips that an encoder encodes."""
    asked = features.Asked(features.CLIPS, 4, site.model)
    with site.table.under("video, E+PD"):
        features.behind_encoder(site, asked, *site.vllm("encode", "rest"))


def audio(site: Site) -> None:
    """Sound that the relay passes on."""
    asked = features.Asked(features.SOUNDS, 3, model.hearing(site.root))
    with site.table.under("audio"):
        features.alone(site, asked, *site.vllm("hearing"))


def audio_encoded(site: Site) -> None:
    """Sound that an encoder encodes."""
    asked = features.Asked(features.SOUNDS, 3, model.hearing(site.root))
    with site.table.under("audio, E+PD"):
        features.behind_encoder(site, asked, *site.vllm("hearing-encode", "hearing"))


def tensor(site: Site) -> None:
    """--tensor-parallel-size 2 behind an encoder."""
    asked = features.Asked(features.PICTURES, 3, site.model)
    with site.table.under("tensor parallel 2"):
        encode, rest = site.vllm("encode", "two-ranks")
        features.ranks(site, rest)
        features.behind_encoder(site, asked, encode, rest)


def data(site: Site) -> None:
    """--data-parallel-size 2."""
    asked = features.Asked(features.PICTURES, 3, site.model)
    with site.table.under("data parallel 2"):
        (worker,) = site.vllm("two-engines")
        features.alone(site, asked, worker)
        features.engines(site, worker)


def drafting(site: Site) -> None:
    """Speculative decoding by n-grams."""
    with site.table.under("speculative decoding"):
        features.drafting(site, *site.vllm("drafting"))


def lora(site: Site) -> None:
    """LoRA adapters, by flag and at run time."""
    model.adapters(site.model)
    with site.table.under("LoRA"):
        features.adapted(site, *site.vllm("adapted"))


def int8(site: Site) -> None:
    """A checkpoint in INT8."""
    model.int8(site.root)
    with site.table.under("INT8 checkpoint"):
        features.quantized(site, *site.vllm("int8"))


PARTS: Mapping[str, Callable[[Site], None]] = {
    "two": two,
    "three": three,
    "mixed": mixed,
    "ours": ours,
    "scripts": scripts,
    "fleet": fleets,
    "video": video,
    "video-encoded": video_encoded,
    "audio": audio,
    "audio-encoded": audio_encoded,
    "tensor": tensor,
    "data": data,
    "drafting": drafting,
    "lora": lora,
    "int8": int8,
}


def main() -> int:
    """Exit status 0 if every check holds, 1 if not."""
    arguments = argparse.ArgumentParser(prog="python -m scripts.interop", allow_abbrev=False)
    arguments.add_argument("--venv", type=Path, default=Path(".venv-interop"))
    arguments.add_argument("--work", type=Path, help="folder for models, logs and embeddings")
    arguments.add_argument("--json", type=Path, help="write the checks here too")
    arguments.add_argument(
        "parts",
        nargs="*",
        help=f"some of {', '.join(PARTS)}; all if none",
    )
    given = arguments.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        arguments.error(f"no such part: {', '.join(unknown)}")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are ended even then
    table = Table()
    with ExitStack() as stack:
        work = Path(given.work or stack.enter_context(tempfile.TemporaryDirectory())).absolute()
        site = Site(given.venv.absolute(), work, model.make(work), table)
        stack.callback(site.close)
        for part in given.parts or PARTS:
            PARTS[part](site)
    return table.report("check", given.json)


if __name__ == "__main__":
    sys.exit(main())
