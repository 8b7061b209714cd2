"""`python -m benchmarks.ask`: ask a server about pictures it never saw, through the OpenAI API."""

from __future__ import annotations

import argparse
import json
import random
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pictures import Question, encode_image, sample

KINDS = ("describe", "count", "colour")
_TIMEOUT_S = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if the server cannot be asked or every answer is wrong."""
    args = _arguments(argv)
    right = 0
    for number, kind in enumerate(args.kinds.split(",")):
        question = sample(kind, random.Random(args.seed + number).randrange(1 << 30))
        try:
            answer = ask(args.base_url, args.model, question)
        except (OSError, urllib.error.URLError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        right += answer == question.answer
        _show(question, answer, _save(question, args.save, kind))
    return 0 if right else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.ask", description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:10001")
    parser.add_argument("--model", default="", help="the first of /v1/models if empty")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of questions")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--save", type=Path, help="folder to keep the pictures in")
    return parser.parse_args(argv)


def ask(base_url: str, model: str, question: Question) -> str:
    """The server's answer to one question, greedy."""
    name = model or _call(f"{base_url}/v1/models")["data"][0]["id"]
    body = {
        "model": name,
        "messages": question.openai_messages(),
        "temperature": 0,
        "max_tokens": 64,
    }
    answer = _call(f"{base_url}/v1/chat/completions", body)
    return str(answer["choices"][0]["message"]["content"]).strip()


def _call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        return json.load(response)


def _save(question: Question, folder: Path | None, kind: str) -> list[Path]:
    if folder is None:
        return []
    paths = [folder / f"{kind}-{i}.png" for i in range(len(question.scenes))]
    for path, image in zip(paths, question.images(), strict=True):
        path.write_bytes(encode_image(image))
    return paths


def _show(question: Question, answer: str, paths: Sequence[Path]) -> None:
    where = f"  ({', '.join(map(str, paths))})" if paths else ""
    verdict = "true" if answer == question.answer else f"wrong, it is: {question.answer}"
    print(f"Question: {question.text}{where}")
    print(f"Answer:   {answer}   [{verdict}]")


if __name__ == "__main__":
    sys.exit(main())
