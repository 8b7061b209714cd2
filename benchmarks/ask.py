"""`python -m benchmarks.ask`: ask a server about pictures it never saw, through the OpenAI API.

Exit status: 0 if the server answered every question, rightly or not; 1 if it cannot be asked.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.pictures import KINDS, Question, encode_image, sample
from benchmarks.serve.sse import error_text

_ASKED = ("describe", "count", "colour")
_TIMEOUT_S = 120
_MAX_TOKENS = 64
_SHOWN = 300  # characters of an answer


class AskError(Exception):
    """The server cannot be asked; the message says which URL and what it said."""


def main(argv: Sequence[str] | None = None) -> int:
    """Asks one question of each kind; returns the exit status."""
    args = _arguments(argv)
    for number, kind in enumerate(args.kinds):
        question = _question(kind, random.Random(args.seed + number))
        try:
            answer = ask(args.base_url.rstrip("/"), args.model, question)
        except AskError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        _show(question, answer, _save(question, args.save, f"{kind}-{number}"))
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ask",
        description="Asks a server about drawn pictures and says which answers are true."
        " A wrong answer is no failure: the exit status is 1 only if the server cannot be asked.",
    )
    parser.add_argument(
        "--base-url",
        default="http://127.0.0.1:10001",
        help="URL of the OpenAI API, without /v1 (default: %(default)s)",
    )
    parser.add_argument(
        "--model", default="", help="model name in requests (default: the first of /v1/models)"
    )
    parser.add_argument(
        "--kinds",
        type=_kinds,
        default=",".join(_ASKED),
        help=f"kinds of questions, comma-separated, one question each: {', '.join(KINDS)};"
        " text has no picture (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 30),
        help="number that decides the questions (default: another one each time)",
    )
    parser.add_argument(
        "--save", type=Path, help="folder to write the pictures to, as PNG (default: no folder)"
    )
    return parser.parse_args(argv)


def _kinds(listed: str) -> list[str]:
    kinds = [kind.strip() for kind in listed.split(",")]
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(KINDS)}")
    return kinds


def _question(kind: str, rng: random.Random) -> Question:
    """A question that a model other than the demonstration's can answer right."""
    while not (question := sample(kind, rng.randrange(1 << 30))).has_facts:
        pass
    return question


def ask(base_url: str, model: str, question: Question) -> str:
    """The server's answer to one question, greedy; empty if it has no text. Raises AskError."""
    try:
        name = model or _call(f"{base_url}/v1/models")["data"][0]["id"]
        body = {
            "model": name,
            "messages": question.openai_messages(),
            "temperature": 0,
            "max_tokens": _MAX_TOKENS,
        }
        answer = _call(f"{base_url}/v1/chat/completions", body)
        # An answer that is all reasoning or tool calls has the content null.
        return str(answer["choices"][0]["message"]["content"] or "").strip()
    except (LookupError, TypeError) as error:
        raise AskError(f"{base_url}: not an answer of the OpenAI API: {error!r}") from error


def _call(url: str, body: dict[str, Any] | None = None) -> Any:
    """The decoded JSON answer. Raises AskError."""
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise AskError(f"{url}: HTTP {error.code}: {_said(error)}") from error
    except urllib.error.URLError as error:
        raise AskError(f"{url}: {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise AskError(f"{url}: {error!r}") from error


def _said(error: urllib.error.HTTPError) -> str:
    """The message in the error's body, else the reason of its status line."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return error_text(error.read()) or error.reason
    return error.reason


def _save(question: Question, folder: Path | None, name: str) -> list[Path]:
    if folder is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}-{i}.png" for i in range(len(question.scenes))]
    for path, image in zip(paths, question.images(), strict=True):
        path.write_bytes(encode_image(image))
    return paths


def _show(question: Question, answer: str, paths: Sequence[Path]) -> None:
    where = f"  ({', '.join(map(str, paths))})" if paths else ""
    verdict = "true" if question.matches(answer) else f"expected: {question.answer}"
    print(f"Question: {question.text}{where}")
    print(f"Answer:   {_readable(answer) or '(no text)'}   [{verdict}]")


def _readable(answer: str) -> str:
    """`answer` as one line of at most `_SHOWN` characters that a terminal can show."""
    line = " ".join("".join(c if c.isprintable() else " " for c in answer).split())
    words = textwrap.wrap(line, _SHOWN)
    return line if len(words) < 2 else f"{words[0]} ..."


if __name__ == "__main__":
    sys.exit(main())
