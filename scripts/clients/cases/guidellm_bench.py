"""guidellm: synthetic chats, one after the other and several at once, without a failed request."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from report import SITE, holds, run, same

REQUESTS = 8
TOKENS = 12
SECONDS = 600


def _run(profile: str) -> None:
    with TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console",
                "--backend", f"kind=openai_http,target={SITE['url']},model={SITE['model']}",
                "--profile", profile, "--constraint", f"kind=max_requests,count={REQUESTS}",
                "--tokenizer", f"kind=huggingface_auto,model={SITE['folder']}",
                "--data", f"kind=synthetic_text,prompt_tokens=40,output_tokens={TOKENS}",
                "--output", f"kind=json,path={result}",
            ],
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        holds(done.returncode == 0, done.stderr[-600:])
        (found,) = json.loads(result.read_text())["benchmarks"]
    # All that it sent. Its figures, `metrics.request_totals` among them, leave those out that were
    # not under way between the first request's start and the moment at which it stopped.
    made = found["scheduler_metrics"]["requests_made"]
    errors = [one["info"]["error"] for one in found["requests"]["errored"]]
    same(
        (made["successful"], made["errored"], made["incomplete"], errors[:1]),
        (REQUESTS, 0, 0, []),
    )
    for request in found["requests"]["successful"]:
        same(request["output_metrics"]["text_tokens"], TOKENS)


def one_by_one() -> None:
    _run("kind=synchronous")


def several() -> None:
    _run("kind=concurrent,streams=4")


if __name__ == "__main__":
    run(one_by_one, several)
