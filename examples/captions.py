"""Caption all pictures of a folder, many at once, into a JSON Lines file.

    pip install openai
    python examples/captions.py pictures/ captions.jsonl --at-once 16

A picture that fails is written with its error, and the others go on. The server batches pictures of
different requests, so that more at once are faster up to what its encoders take.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import mimetypes
import os
import sys
from pathlib import Path

from openai import AsyncOpenAI, OpenAIError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Caption all pictures of a folder.", allow_abbrev=False
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("captions", type=Path, help="file to write, a JSON object a line")
    parser.add_argument("--at-once", type=int, default=16, help="requests in progress")
    parser.add_argument("--question", default="What is in this image?")
    return parser.parse_args()


async def caption(client: AsyncOpenAI, model: str, picture: Path, question: str) -> dict[str, str]:
    """The picture's line."""
    kind = mimetypes.guess_type(picture.name)[0] or "image/png"
    data = base64.b64encode(await asyncio.to_thread(picture.read_bytes)).decode()
    try:
        answer = await client.chat.completions.create(
            model=model,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}},
                        {"type": "text", "text": question},
                    ],
                }
            ],
        )
    except OpenAIError as error:
        return {"file": picture.name, "error": str(error)}
    return {"file": picture.name, "caption": answer.choices[0].message.content or ""}


async def main() -> int:
    """Exit status: 1 if a picture failed."""
    given = arguments()
    pictures = sorted(p for p in given.folder.iterdir() if p.suffix.lower() in SUFFIXES)
    base_url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:10001/v1")
    api_key = os.environ.get("OPENAI_API_KEY", "none")
    room, failed = asyncio.Semaphore(given.at_once), 0
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        model = (await client.models.list()).data[0].id

        async def one(picture: Path) -> dict[str, str]:
            async with room:
                return await caption(client, model, picture, given.question)

        with given.captions.open("w", encoding="utf-8") as file:
            for line in asyncio.as_completed([one(picture) for picture in pictures]):
                found = await line
                failed += "error" in found
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
    print(f"{len(pictures)} pictures, {failed} failed: {given.captions}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
