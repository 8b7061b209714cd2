"""/openapi.json tells what every route takes and answers."""

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from protocol.request_table import FIELDS
from protocol.settings import resolve
from proxy.api_routes import bodies_of
from proxy.app import create_app
from proxy.assembly import make_gateway
from proxy.config import ProxyConfig
from proxy.upstream.client import UpstreamClient
from services.frontend.models import Models
from tests.conftest import ModelDir
from tests.support.listening import run

DIALECTS = ("tokens", "openai")
REQUESTS = {"chat": "ChatCompletionRequest", "completions": "CompletionRequest"}


@contextlib.asynccontextmanager
async def documented(model: str, dialect: str) -> AsyncIterator[dict[str, Any]]:
    flags = ["--model", model, "--dialect", dialect, "--decode-servers-urls", "http://127.0.0.1:9"]
    config = resolve(ProxyConfig, flags, prog="proxy")
    models = Models.load(config.to_configs()) if dialect == "tokens" else None
    client = UpstreamClient(1.0)
    try:
        app = create_app(make_gateway(config, models, client, client))
        yield TestClient(app).get("/openapi.json").json()
    finally:
        await client.close()
        if models is not None:
            await models.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_route_is_described_by_what_is_there(model_dir: ModelDir, dialect: str) -> None:
    async def work() -> None:
        async with documented(str(model_dir("qwen3")), dialect) as document:
            told = {
                f"{method.upper()} {path}"
                for path, operations in document["paths"].items()
                for method in operations
            }
            bodies = bodies_of(renders=dialect == "tokens")
            assert told <= bodies.keys()
            text = json.dumps(document)
            assert "HTTPValidationError" not in text
            schemas = document["components"]["schemas"]
            named = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', text))
            assert named == schemas.keys()
            assert all(re.fullmatch(r"[\w.-]+", name) for name in named)

    run(work)


def test_requests_have_the_fields_of_the_table_and_no_others(model_dir: ModelDir) -> None:
    async def work() -> None:
        async with documented(str(model_dir("qwen3")), "tokens") as document:
            schemas = document["components"]["schemas"]
            for route, name in REQUESTS.items():
                shape = schemas[name]
                rows = {row.name: row for row in FIELDS if route in row.routes}
                assert shape["properties"].keys() == rows.keys()
                assert shape["additionalProperties"] is False
                said = {name: field["description"] for name, field in shape["properties"].items()}
                assert said["temperature"] == rows["temperature"].does
                assert said["watermarking"].startswith("Refused: ")
            for name in ("ChatMessage", "ContentPart", "ToolCall", "FunctionCall"):
                assert "others" not in schemas[name]["properties"]
            asked = document["paths"]["/v1/chat/completions"]["post"]
            kinds = asked["responses"]["200"]["content"]
            assert kinds.keys() == {"application/json", "text/event-stream"}

    run(work)
