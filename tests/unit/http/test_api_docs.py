"""/docs works without any other server."""

import re

from fastapi.testclient import TestClient

from services.http.api_docs import described


def test_the_description_needs_nothing_from_elsewhere() -> None:
    client = TestClient(described("A <b> server", "1", {}))
    page = client.get("/docs")
    assert page.status_code == 200 and "A &lt;b&gt; server" in page.text
    assert not re.search(r"https?://|<script(?![^>]*src=)", page.text)
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) == 4
    for path in named:
        found = client.get(f"/{path}")
        assert found.status_code == 200 and found.content, path
        assert "https:" not in found.headers["content-security-policy"]
    assert client.get("/openapi.json").json()["info"]["version"] == "1"
    assert client.get("/redoc").status_code == 404
