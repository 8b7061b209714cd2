"""aiperf: synthetic chats with pictures, streamed, and conversations, without a failed request."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from report import SITE, holds, run

REQUESTS = 12
SECONDS = 600


# By itself it reads a folder; told that there is no hub, it takes the path for a name of the hub.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}


def _run(*flags: str, wanted: int = REQUESTS) -> None:
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("aiperf")), "profile", "--ui", "none",
                "--model", SITE["model"], "--url", SITE["url"], "--tokenizer", SITE["folder"],
                "--prompt-input-tokens-mean", "40", "--prompt-output-tokens-mean", "12",
                "--concurrency", "4", "--random-seed", "7", "--output-artifact-dir", folder,
                *flags,
            ],
            env=_ENVIRONMENT,
            capture_output=True, text=True, timeout=SECONDS, cwd=folder,
        )  # fmt: skip
        holds(done.returncode == 0, (done.stdout + done.stderr)[-900:])
        (result,) = Path(folder).rglob("profile_export_aiperf.json")
        found = json.loads(result.read_text())
    failed = found.get("error_summary") or []
    served = found["request_count"]["avg"]
    holds(served == wanted and not failed, f"{served} served, failed: {failed}")


def streamed_pictures() -> None:
    picture = ("--image-width-mean", "64", "--image-height-mean", "64", "--image-batch-size", "1")
    _run("--endpoint-type", "chat", "--streaming", "--request-count", str(REQUESTS), *picture)


def conversations() -> None:
    turns = ("--conversation-num", "4", "--conversation-turn-mean", "3")
    _run("--endpoint-type", "chat", "--streaming", *turns)


def completions() -> None:
    _run("--endpoint-type", "completions", "--request-count", str(REQUESTS))


def responses() -> None:
    _run("--endpoint-type", "responses", "--streaming", "--request-count", str(REQUESTS))


if __name__ == "__main__":
    run(streamed_pictures, conversations, completions, responses)
