"""`python -m benchmarks.ask [QUESTION]`: ask a server through the OpenAI API, about a picture of
yours or about drawn ones that it never saw.

Exit status: 0 if the server answered every question, rightly or not; 1 if it cannot be asked.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import mimetypes
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
    """Asks the question that is given, or one of each kind; returns the exit status."""
    args = _arguments(argv)
    if args.question or args.image:
        return _ask_own(args)
    for number, kind in enumerate(args.kinds):
        question = _question(kind, random.Random(args.seed + number))
        try:
            answer = ask(args.base_url.rstrip("/"), args.model, question.openai_messages())
        except AskError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        _show(question, answer, _save(question, args.save, f"{kind}-{number}"))
    return 0


def _ask_own(args: argparse.Namespace) -> int:
    try:
        messages = _own_messages(args.question or "What is in this image?", args.image)
        answer = ask(args.base_url.rstrip("/"), args.model, messages, args.max_tokens)
    except AskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(answer or "(no text)")
    return 0


def _own_messages(text: str, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """One message with all pictures, then the text. Raises AskError."""
    parts: list[dict[str, Any]] = []
    for path in paths:
        try:
            data = base64.b64encode(path.read_bytes()).decode()
        except OSError as error:
            raise AskError(f"--image: {path} cannot be read: {error.strerror}") from error
        kind = mimetypes.guess_type(path.name)[0] or "image/png"
        parts.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m benchmarks.ask",
        description="Asks a server a question, about the pictures given or none; or, without a"
        " question and a picture, about drawn pictures, and says which answers are true."
        " A wrong answer is no failure: the exit status is 1 only if the server cannot be asked.",
    )
    parser.add_argument("question", nargs="?", default="", help="what to ask")
    parser.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a picture that the question is about; may be given several times",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=_MAX_TOKENS,
        help="longest answer to QUESTION (default: %(default)s)",
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


def ask(base_url: str, model: str, messages: Sequence[Any], max_tokens: int = _MAX_TOKENS) -> str:
    """The server's answer to a chat, greedy; empty if it has no text. Raises AskError."""
    try:
        name = model or _call(f"{base_url}/v1/models")["data"][0]["id"]
        body = {
            "model": name,
            "messages": messages,
            "temperature": 0,
            "max_tokens": max_tokens,
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
