"""The page at /: its files, who may see what, and what it tells of requests and workers."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from protocol.request_record import RequestRecord
from protocol.types import MMItem
from proxy.gateway import RecentRequests
from proxy.page.figures import figures_from
from proxy.page.files import paths
from proxy.page.views import stages_view
from services.frontend.render import Frontend
from tests.support.frontend_helpers import frontend, write_model
from tests.support.relay_workers import CHAT, Relayed, data_url, pictures, relaying, text
from tests.support.scripted_apps import app_of
from tests.support.scripted_workers import TOKENS, Worker, before
from tests.support.waiting import eventually

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ADMIN = {"x-api-key": "operators"}
ID = "page-" + "0a" * 16
ROUTES = ("/page/about", "/page/fleet", "/page/requests", "/page/stages")
STATIC = files("proxy.page").joinpath("static")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


async def told(proxy: Relayed, path: str, headers: Any = ADMIN) -> Any:
    async with proxy.session.get(proxy.url + path, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_a_browser_gets_the_page_and_all_that_it_names() -> None:
    async with relaying("D") as proxy:
        async with proxy.session.get(proxy.url + "/", headers=HTML) as response:
            page, policy = await response.text(), response.headers["content-security-policy"]
            assert response.status == 200 and response.content_type == "text/html"
        assert "default-src 'none'" in policy and "unsafe" not in policy
        named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page))
        assert {"page/main.js", "page/theme.css", "page/mark.svg"} <= named
        for path in paths() - {"/"}:
            async with proxy.session.get(proxy.url + path) as response:
                assert response.status == 200 and await response.read()
                assert response.headers["x-content-type-options"] == "nosniff"
                tag = response.headers["etag"]
            known = {"if-none-match": tag}
            async with proxy.session.get(proxy.url + path, headers=known) as response:
                assert (response.status, await response.read()) == (304, b"")
        assert {f"/{name}" for name in named} <= paths()


def test_the_page_needs_nothing_that_its_policy_forbids() -> None:
    for file in STATIC.iterdir():
        source = file.read_text()
        elsewhere = re.findall(r"https?://(?!www\.w3\.org/)[^\s\"']+", source)
        assert elsewhere == [], file.name
        if file.name.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", source
            )
            for module in re.findall(r'from "\./([^"]+)"', source):
                assert STATIC.joinpath(module).is_file(), f"{file.name} imports {module}"
    html = STATIC.joinpath("index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", html)


@pytest.mark.parametrize("flags", [(), ("--no-page",)])
async def test_who_wants_no_page_gets_200_all_the_same(flags: tuple[str, ...]) -> None:
    async with relaying("D", *flags) as proxy:
        for method in ("GET", "HEAD"):
            for headers in ({}, {"accept": "*/*"}, {"user-agent": "kube-probe/1.31"}):
                call = proxy.session.request(method, proxy.url + "/", headers=headers)
                async with call as response:
                    assert response.status == 200 and response.content_type == "text/plain"


async def test_without_the_page_nothing_of_it_is_there() -> None:
    async with relaying("D", "--no-page", "--admin-api-key", "operators") as proxy:
        for path in (*paths() - {"/"}, *ROUTES):
            async with proxy.session.get(proxy.url + path, headers=ADMIN) as response:
                assert response.status == 404, path
        await proxy.post(text(), {"x-request-id": ID})
        assert list(proxy.gateway.recent) == []


async def test_the_admin_key_alone_opens_what_operators_see() -> None:
    async with relaying("D", "--admin-api-key", "operators") as proxy:
        for path in ("/page/fleet", "/page/requests"):
            for headers in ({}, {"x-api-key": "other"}, {"authorization": "Bearer operators"}):
                async with proxy.session.get(proxy.url + path, headers=headers) as response:
                    assert response.status == 401
        assert not proxy.gateway.recent.wants(b"any")  # no operator has the page open
        for path in ("/page/fleet", "/page/requests"):
            await told(proxy, path)
        assert proxy.gateway.recent.wants(b"any")


async def test_an_api_key_guards_what_a_client_sees(front: Frontend) -> None:
    async with (
        before(decode=[Worker()]) as stack,
        app_of(stack, front, keys=("secret",)) as url,
        aiohttp.ClientSession() as session,
    ):
        for path in (*paths(), "/page/about"):
            async with session.get(url + path) as response:
                assert response.status == 200, path
        for path in ("/page/stages?id=x", "/v1/models"):
            async with session.get(url + path) as response:
                assert response.status == 401
        bearer = {"authorization": "Bearer secret"}
        async with session.get(f"{url}/page/stages?id={ID}", headers=bearer) as response:
            assert (response.status, await response.json()) == (200, {"request": None})
        async with session.get(f"{url}/page/fleet", headers=bearer) as response:
            assert response.status == 401


async def test_the_page_follows_its_own_relayed_request_and_no_other() -> None:
    async with relaying("EPD") as proxy:
        await proxy.post(text(), {"x-request-id": "mine"})
        assert list(proxy.gateway.recent) == []  # recorded only while the page is open
        await proxy.post(pictures(data_url("a")), {"x-request-id": ID})
        view = (await told(proxy, f"/page/stages?id={ID}", {}))["request"]
        assert not view["running"] and view["outcome"] == "ok" and view["media"] == 1
        assert {"encode", "prefill", "decode"} <= {call["stage"] for call in view["calls"]}
        for call in view["calls"]:
            assert 0 <= call["start"] <= call["end"] <= view["ms"] and "worker" not in call
        for other in ("mine", ID[:-1], "page-", ID.replace("0a", "0b")):
            assert await told(proxy, f"/page/stages?id={other}", {}) == {"request": None}


async def test_operators_see_workers_and_requests() -> None:
    async with relaying("PD", "--admin-api-key", "operators") as proxy:
        assert (await told(proxy, "/page/requests"))["requests"] == []
        await proxy.post(text(), {"x-request-id": "<b>mine</b>"})
        (view,) = (await told(proxy, "/page/requests"))["requests"]
        assert (view["id"], view["path"], view["status"]) == ("<b>mine</b>", CHAT, 200)
        workers = {call["stage"]: call["worker"] for call in view["calls"]}
        assert workers["decode"] == proxy.workers["decode"][0].url
        fleet = await told(proxy, "/page/fleet")
        assert [one["state"] for one in fleet["workers"]] == ["up", "up"]
        assert (fleet["placed_by"], fleet["in_flight"]) == ("proxy", 0)


async def test_the_last_requests_are_bounded_and_keep_no_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.gateway._WATCHED_S", 3600.0)
    async with relaying("D", "--admin-api-key", "operators") as proxy:
        await told(proxy, "/page/requests")
        for number in range(210):
            await proxy.post(text(), {"x-request-id": str(number)})
        kept = list(proxy.gateway.recent)
        assert len(kept) == 200 and kept[-1].request_id == "209"
        assert {record.tail for record in kept} == {(b"", b"")}
        shown = (await told(proxy, "/page/requests"))["requests"]
        assert [view["id"] for view in shown] == [str(n) for n in range(209, 169, -1)]


async def test_what_is_kept_of_a_request_is_short_however_long_its_model_is() -> None:
    async with relaying("D") as proxy:
        body = text() | {"model": "x" * 2_000_000}
        await proxy.post(body, {"x-request-id": ID})
        (kept,) = proxy.gateway.recent
        assert kept.model == "x" * 128


@pytest.mark.parametrize("stream", [False, True])
async def test_a_rendered_request_is_followed_too(stream: bool, front: Frontend) -> None:
    async with (
        before(prefill=[Worker()], decode=[Worker()]) as stack,
        app_of(stack, front) as url,
        aiohttp.ClientSession() as session,
    ):
        body = {"model": "tiny", "max_tokens": len(TOKENS), "stream": stream,
                "messages": [{"role": "user", "content": "Hello"}]}  # fmt: skip
        async with session.post(url + CHAT, json=body, headers={"x-request-id": ID}) as response:
            assert response.status == 200 and await response.read()
        async with session.get(f"{url}/page/stages?id={ID}") as response:
            view = (await response.json())["request"]
        assert not view["running"] and view["completion_tokens"] == len(TOKENS)
        assert 0 < view["ttft_ms"] <= view["ms"] and view["prompt_tokens"] > 0
        assert {"render", "prefill", "decode"} <= {call["stage"] for call in view["calls"]}


def test_a_request_in_progress_has_stages_without_an_end() -> None:
    recent, record = RecentRequests(True), RequestRecord(CHAT, ID + "-1")
    record.items = [MMItem("f" * 64, "image", 3, 5)]
    recent.begun(record)
    record.begin("prefill", record.start)
    assert recent.asked_by_page(ID) is record
    view = stages_view(record, record.start + 0.5)
    assert view["running"] and view["ms"] == 500 and view["prompt_tokens"] is None
    assert view["calls"] == [{"stage": "prefill", "start": 0, "end": None}]
    assert view["items"] == [{"offset": 3, "length": 5, "modality": "image"}]
    recent.over(record)
    view = stages_view(record, record.start + 99)
    assert not view["running"] and view["calls"][0]["end"] == view["ms"] < 99e3


OURS = b"""# HELP triptych:num_requests_running x
triptych:num_requests_running{role="decode"} 3.0
triptych:generation_tokens_total{role="decode"} 1.5e+02
triptych:kv_cache_usage_perc{role="decode"} 0.25
triptych:steps_total{role="decode"} 9.0
"""
VLLM = b"""vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.1
vllm:num_requests_waiting{engine="0"} e
vllm:prefix_cache_hits_total{engine="0"} 7
"""


@pytest.mark.parametrize(
    ("said", "figures"),
    [
        (OURS, {"num_requests_running": 3, "generation_tokens": 150, "kv_cache_usage_perc": 0.25}),
        (VLLM, {"num_requests_running": 5, "kv_cache_usage_perc": 0.3, "prefix_cache_hits": 7}),
        (b"<html>\xff", {}),
    ],
)
def test_figures_are_read_of_any_engine(said: bytes, figures: dict[str, float]) -> None:
    assert figures_from(said) == pytest.approx(figures)


async def test_a_workers_figures_come_from_its_own_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.page.figures._EVERY_S", 3600.0)
    async with relaying("D", "--admin-api-key", "operators") as proxy:
        asked = proxy.workers["decode"][0].asked
        for _ in range(3):
            await told(proxy, "/page/fleet")
        await eventually(lambda: any(one.path == "/metrics" for one in asked))
        assert sum(one.path == "/metrics" for one in asked) == 1  # however often the page asks
