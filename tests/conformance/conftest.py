"""One stack for all rows: two workers of a tiny model behind a proxy of each dialect. It ends with
them, so that its memory is free for other tests of the same process."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.asking import DIALECTS, Dialect, Door
from tests.conftest import ModelDir
from tests.support.chat_templates import TEMPLATES
from tests.support.stack import idle, proxy, running

# The agents' APIs have no field for a template: this one shows what they hand to it.
TEMPLATE = (
    "{% if reasoning_effort %}Effort: {{ reasoning_effort }}\n{% endif %}"
    + (TEMPLATES["qwen3_tools"])
)


@pytest.fixture(scope="package")
def doors(
    model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Dialect, Door]]:
    """A proxy of each dialect."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    flags = ("--chat-template", str(template), "--trust-request-chat-template")
    with running(model_dir("qwen3")) as stack:
        workers = [stack.start(f"services.{name}", *flags) for name in ("prefill", "decode")]
        for worker in workers:
            worker.wait_ready()
        prefill, decode = workers
        # Workers are here to stay: they need not be asked for their health all the time.
        rarely = ("--probe-interval", "5", *flags)
        known: dict[str, Any] = {}
        yield {
            dialect: Door(dialect, front.url, decode.url, known)
            for dialect in DIALECTS
            for front in [proxy(stack, [], [prefill], [decode], "--dialect", dialect, *rarely)]
        }
        for worker in workers:
            idle(worker)


@pytest.fixture(params=DIALECTS)
def door(request: pytest.FixtureRequest, doors: dict[Dialect, Door]) -> Door:
    return doors[request.param]
