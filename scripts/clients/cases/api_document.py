"""schemathesis on /openapi.json: no answer with a 5xx, none outside its schema."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from report import SITE, holds, run

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
SECONDS = 900


def made_up_requests() -> None:
    with TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{SITE['url']}/openapi.json"),
                *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing"),
                *("--max-examples", "20", "--seed", "1", "--generation-database", "none"),
                *("--request-timeout", "60", "--continue-on-failure", "--no-color"),
                *(flag for path in SITE["only"] for flag in ("--include-path", path)),
            ],
            env={
                **os.environ,
                "SCHEMATHESIS_HOOKS": "api_hooks",
                "PYTHONPATH": str(Path(__file__).parent),
                "API_NOTES": str(notes),
            },
            cwd=folder, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        found = notes.read_text().splitlines() if notes.exists() else []
    sys.stderr.write(done.stdout + done.stderr)
    holds(done.returncode == 0, done.stdout[-600:])
    # Requests must have been answered, besides all that are refused.
    for path in SITE["plain"]:
        answered = any(line.startswith(f"POST {path} 200 ") for line in found)
        holds(answered, f"{path}: every request was refused")
    for path in SITE["streamed"]:
        holds(f"POST {path} 200 text/event-stream" in found, f"{path}: no stream")


if __name__ == "__main__":
    run(made_up_requests)
