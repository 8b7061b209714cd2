"""Turns of many conversations whose KV is four times the pool, with and without tiers below it.

    python -m benchmarks.kv_tiers [--quick] [--json FILE] [--markdown FILE]

One worker that does it all (`services.pdfusion`), over HTTP, with the same pool each time: without
tiers (the peer of every row), with host memory, with files, with both, and once with a pool for
everything, which is the most that tiers could give. Conversations take turns in random order, so
that as a rule all others have spoken since: an LRU cache of a quarter of the working set finds
little. Each turn sends the whole conversation so far; a closed loop keeps two turns under way. The
first turn of each conversation is not measured. Last, the worker is started again over the same
files, and each conversation takes one turn more. All answers must be the same, token for token.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.common import random_model
from benchmarks.common.processes import call, free_port, serving
from benchmarks.common.random_model import ModelShape
from benchmarks.common.rows import (
    Row,
    arguments,
    at_least,
    at_most,
    finish,
    hardware,
    head,
    line,
    markdown,
)

BASE = Path("models/demo")
SEED = 0
BLOCK = 16
AT_ONCE = 2
SHARE = 4  # of the working set, one part of so many fits into the pool
FIRST_TOKEN, LAST_TOKEN = 20, 600  # ordinary words of the demonstration model's vocabulary
_ANSWER_S = 120.0
SHAPE = ModelShape(
    {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 10,
     "num_attention_heads": 16, "num_key_value_heads": 4, "layer_types": ["full_attention"] * 10,
     "max_position_embeddings": 8192},
    {"depth": 1, "out_hidden_size": 512},
    3136,
)  # fmt: skip


@dataclass(frozen=True)
class Load:
    """`sessions` of `turns` turns; a session begins with `system` tokens of its own, and each turn
    adds `user` tokens and as many of the `answer`."""

    sessions: int = 24
    turns: int = 6
    system: int = 400
    user: int = 48
    answer: int = 16

    @property
    def longest(self) -> int:
        """Tokens of a session after its last turn and the one after a restart."""
        return self.system + (self.turns + 1) * (self.user + self.answer)

    @property
    def pool_blocks(self) -> int:
        """A quarter of what all sessions hold halfway."""
        halfway = self.system + self.turns * (self.user + self.answer) // 2
        return self.sessions * -(-halfway // BLOCK) // SHARE


QUICK = Load(sessions=8, turns=3, system=240, user=32, answer=8)


@dataclass
class Run:
    """What one worker has done: seconds to the first token of each turn that counts, how long they
    took together, the answers, and the worker's counters."""

    firsts: list[float] = field(default_factory=list)
    seconds: float = 0.0
    answers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def turns_s(self) -> float:
        return len(self.firsts) / self.seconds

    def first_ms(self, share: float) -> float:
        """The time to the first token that `share` of the turns keep."""
        return 1e3 * sorted(self.firsts)[min(len(self.firsts) - 1, int(share * len(self.firsts)))]

    @property
    def cached(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.counters["cached_tokens"] / self.counters["prompt_tokens"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("kv_tiers", __doc__)
    parser.add_argument("--markdown", type=Path, help="write the table here")
    args = parser.parse_args(argv)
    load = QUICK if args.quick else Load()
    where = hardware(("torch", "transformers"), SEED)
    spoken = f"{load.sessions} conversations of {load.turns} turns"
    about = f"{spoken}, a pool of {load.pool_blocks} blocks; {where}"
    print(about)
    with tempfile.TemporaryDirectory() as folder:
        model = random_model.build(BASE, Path(folder) / "model", SHAPE)
        rows = compare(model, Path(folder), load, quick=args.quick)
    print(head(), *map(line, rows), sep="\n")
    if args.markdown is not None:
        args.markdown.write_text(markdown(rows, about))
    return finish(rows, args.json)


def compare(model: Path, folder: Path, load: Load, *, quick: bool) -> list[Row]:
    disk = ["--kv-disk", "8", "--kv-disk-path"]
    small = ["--num-gpu-blocks-override", str(load.pool_blocks)]
    plain = measure(model, folder, load, small)
    rows = [Row("no tiers: share of prompt tokens found", plain.cached)]
    contenders = {
        "host memory": [*small, "--kv-host-memory", "4"],
        "files": [*small, *disk, str(folder / "files")],
        "host memory and files": [
            *small, "--kv-host-memory", "0.05", *disk, str(folder / "both")
        ],
        "a pool for everything": [
            "--num-gpu-blocks-override", str(2 * load.sessions * load.longest // BLOCK)
        ],
    }  # fmt: skip
    if quick:
        contenders = {name: contenders[name] for name in ("host memory", "files")}
    for name, flags in contenders.items():
        found = measure(model, folder, load, flags)
        bar = (1.3, 0.6) if not quick and name != "a pool for everything" else (None, None)
        rows += beside(name, found, plain, *bar)
    if quick:
        return rows
    again = measure(model, folder, load, contenders["files"], plain)
    cold = measure(model, folder, load, small, plain)
    rows += beside("files, after a restart", again, cold, 1.5, 0.6)
    return rows


def beside(
    name: str, ours: Run, peer: Run, faster: float | None, sooner: float | None
) -> list[Row]:
    """`RuntimeError` if the answers are not the same."""
    if ours.answers != peer.answers:
        raise RuntimeError(f"{name}: answers differ from those without tiers")
    return [
        at_least(f"{name}: turns/s", ours.turns_s, peer.turns_s, faster),
        at_most(f"{name}: ms to the first token, median", ours.first_ms(0.5), peer.first_ms(0.5),
                sooner),
        at_most(f"{name}: ms to the first token, p95", ours.first_ms(0.95), peer.first_ms(0.95)),
        Row(f"{name}: share of prompt tokens found", ours.cached, peer.cached),
    ]  # fmt: skip


def measure(
    model: Path, folder: Path, load: Load, flags: Sequence[str], before: Run | None = None
) -> Run:
    """All turns at a worker with these `flags`; or, of conversations that `before` has held, the
    one turn after their last."""
    run = Run(answers=dict(before.answers) if before else {})
    with worker(model, folder, flags) as url:
        if before is not None:
            take_turns(url, load, run, range(load.turns, load.turns + 1))
        else:
            take_turns(url, load, run, range(1))
            run.firsts.clear()
            take_turns(url, load, run, range(1, load.turns))
        run.counters = counters(url)
        if problems := json.loads(call("GET", url, "/integrity")).get("problems"):
            raise RuntimeError(f"the worker's books are wrong: {problems}")
    return run


@contextlib.contextmanager
def worker(model: Path, folder: Path, flags: Sequence[str]) -> Iterator[str]:
    port = free_port()
    command = [
        sys.executable, "-m", "services.pdfusion", "--model", str(model), "--port", str(port),
        "--dtype", "float32", "--block-size", str(BLOCK), "--max-num-seqs", "8",
        "--num-threads", "1", *flags,
    ]  # fmt: skip
    with serving(command, f"http://127.0.0.1:{port}", folder / "worker.log") as url:
        yield url


def take_turns(url: str, load: Load, run: Run, turns: range) -> None:
    """One turn of each session after the other, in random order, `AT_ONCE` at once."""
    order = random.Random(SEED)
    begun = time.perf_counter()
    for turn in turns:
        sessions = order.sample(range(load.sessions), load.sessions)
        threads = [
            threading.Thread(target=_speak, args=(url, load, run, sessions[n::AT_ONCE], turn))
            for n in range(AT_ONCE)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len([1 for key in run.answers if key[1] == turn]) < load.sessions:
            raise RuntimeError("a turn has failed")
    run.seconds = time.perf_counter() - begun


def _speak(url: str, load: Load, run: Run, sessions: Sequence[int], turn: int) -> None:
    for session in sessions:
        first_s, answer = ask(url, prompt(load, run, session, turn), load.answer)
        run.firsts.append(first_s)
        run.answers[session, turn] = answer


def prompt(load: Load, run: Run, session: int, turn: int) -> list[int]:
    """All that was said in a session, and what its user says in this turn."""
    words = random.Random(f"{SEED}:{session}")
    tokens = words.choices(range(FIRST_TOKEN, LAST_TOKEN), k=load.system)
    for number in range(turn + 1):
        tokens += words.choices(range(FIRST_TOKEN, LAST_TOKEN), k=load.user)
        tokens += run.answers[session, number] if number < turn else []
    return tokens


def ask(url: str, tokens: list[int], answer: int) -> tuple[float, list[int]]:
    """(seconds to the first token, tokens of the answer); `RuntimeError` if it fails."""
    sampling = {"max_tokens": answer, "temperature": 0.0, "ignore_eos": True}
    body = json.dumps({"token_ids": tokens, "sampling_params": sampling, "stream": True})
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_ANSWER_S)
    found: list[int] = []
    first_s, begun = 0.0, time.perf_counter()
    with contextlib.closing(connection):
        connection.request(
            "POST", "/inference/v1/generate", body, {"content-type": "application/json"}
        )
        response = connection.getresponse()
        while text := response.readline():
            if not text.startswith(b"data: {"):
                continue
            for choice in json.loads(text[6:]).get("choices", ()):
                first_s = first_s or time.perf_counter() - begun
                found += choice["token_ids"]
    if len(found) != answer:
        raise RuntimeError(f"HTTP {response.status}: {len(found)} of {answer} tokens came")
    return first_s, found


def counters(url: str) -> dict[str, float]:
    """The worker's counters by their names without prefix and suffix."""
    found: dict[str, float] = {}
    for text in call("GET", url, "/metrics").decode().splitlines():
        name, _, value = text.partition(" ")
        if name.startswith("triptych:") and "_total" in name:
            found[name.removeprefix("triptych:").partition("_total")[0]] = float(value)
    return found


if __name__ == "__main__":
    sys.exit(main())
