"""The frontend works without torch and transformers and keeps to its layer."""

import subprocess
import sys
from pathlib import Path

from tests.support.frontend_helpers import write_model

PROGRAM = """
import asyncio, pkgutil, sys
from pathlib import Path
import services.frontend
for module in pkgutil.walk_packages(services.frontend.__path__, "services.frontend."):
    __import__(module.name)
from tests.support.frontend_helpers import chat, frontend, image_part, picture, user

async def main():
    front = frontend(Path(sys.argv[1]))
    request = chat(user("What is this?", image_part(picture())))
    rendered = await front.render_chat(request, request_id="r")
    assert len(rendered.generate.mm_items) == 1
    await front.close()

asyncio.run(main())
heavy = ("torch", "transformers", "safetensors", "connectors", "proxy", "fastapi",
         "services.engine", "services.encoder", "services.master")
print(sorted(name for name in heavy if name in sys.modules))
"""


def test_rendering_a_picture_loads_nothing_heavy(tmp_path: Path) -> None:
    model = write_model("qwen2_5_vl", tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
