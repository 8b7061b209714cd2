"""What `benchmarks.step_time` measures is what it says."""

import pytest

from benchmarks.step_time.__main__ import host_row
from benchmarks.step_time.device import Shape, Steps
from benchmarks.step_time.host import RUNNING, Queue, filled, measure
from tests.conftest import ModelDir


@pytest.mark.parametrize("lacking", ["slots", "blocks", "pictures"])
def test_who_waits_waits_until_the_end_of_the_measurement(lacking: str) -> None:
    queue = Queue(lacking, 5)
    engine = filled(queue)
    assert measure(engine) > 0
    scheduler = engine.core.scheduler
    assert (len(scheduler.running), len(scheduler.waiting)) == (RUNNING, 5)
    assert scheduler.preemptions == 0


def test_a_host_that_slows_down_misses_its_bar() -> None:
    queue = Queue("slots", 1000)
    assert host_row(queue, 90.0, 80.0).holds and host_row(queue, 900.0, 80.0).holds
    assert not host_row(queue, 9000.0, 80.0).holds


def test_steps_of_every_shape_run(model_dir: ModelDir) -> None:
    shapes = [Shape(3, 40), Shape(1, 48, 20)]
    steps = Steps(model_dir("qwen2_5_vl"), "float32", "cpu", shapes)
    assert all(steps.measure(shape, 1) > 0 for shape in shapes)
