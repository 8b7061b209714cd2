"""guidellm: synthetic chats, one after the other and several at once, without a failed request."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from report import SITE, holds, run

REQUESTS = 8
SECONDS = 200


def _run(profile: str) -> None:
    with TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console",
                "--backend", f"kind=openai_http,target={SITE['url']},model={SITE['model']}",
                "--profile", profile, "--constraint", f"kind=max_requests,count={REQUESTS}",
                "--tokenizer", f"kind=huggingface_auto,model={SITE['folder']}",
                "--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=12",
                "--output", f"kind=json,path={result}",
            ],
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        holds(done.returncode == 0, done.stderr[-600:])
        (found,) = json.loads(result.read_text())["benchmarks"]
    totals = found["metrics"]["request_totals"]
    # Those of the first and last moments may be left out of its figures.
    failed = totals["errored"] + totals["incomplete"]
    holds(totals["successful"] >= REQUESTS // 2 and not failed, str(totals))


def one_by_one() -> None:
    _run("kind=synchronous")


def several() -> None:
    _run("kind=concurrent,streams=4")


if __name__ == "__main__":
    run(one_by_one, several)
