import asyncio
import json
from pathlib import Path

from scripts.tree.recorder import Recorder
from tests.support.waiting import eventually

TREE = Path(__file__).parents[3]


async def pauses_often() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    await eventually(lambda: True)


def test_a_coroutine_that_goes_on_is_no_further_call(tmp_path: Path) -> None:
    recorder = Recorder(f"{TREE}/tests/", tmp_path / "count.json")
    recorder.toggle()
    asyncio.run(pauses_often())
    recorder.toggle()
    found = json.loads((tmp_path / "count.json").read_text())
    assert found["files"]["unit/scripts/test_tree.py"] == 2  # the lambda is a call too
    assert found["across"] == 2
