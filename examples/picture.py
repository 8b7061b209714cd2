"""Ask about a picture from a file, with OpenAI's client, and print the answer as it comes.

pip install openai
python examples/picture.py picture.png "What is in this image?"
"""

from __future__ import annotations

import base64
import mimetypes
import os
import sys
from pathlib import Path

from openai import OpenAI


def data_url(path: Path) -> str:
    """The file as a URL that holds all of it."""
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} PICTURE QUESTION")
    base_url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:10001/v1")
    client = OpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    picture, question = Path(sys.argv[1]), sys.argv[2]
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        stream=True,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": data_url(picture)}},
                    {"type": "text", "text": question},
                ],
            }
        ],
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
