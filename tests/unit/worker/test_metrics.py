"""What /metrics of a worker explains."""

from services.worker.engine_metrics import ENGINE_HELP
from tests.conftest import ModelDir
from tests.support.engines import engine


def test_every_figure_of_an_engine_is_explained(model_dir: ModelDir) -> None:
    running = engine(model_dir("qwen2_5_vl"))
    try:
        assert set(running.gauges()) | set(running.counters()) == set(ENGINE_HELP)
    finally:
        running.close()
