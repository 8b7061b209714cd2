"""Pictures in `data:` URLs and in files."""

import asyncio
import base64
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from services.frontend.config import MediaConfig
from tests.support.frontend_helpers import picture
from tests.support.media_urls import fetch, refusal

PICTURE = picture()


@given(st.binary(min_size=1, max_size=200))
def test_base64_data_is_decoded(data: bytes) -> None:
    plain = base64.b64encode(data).decode()
    wrapped = base64.encodebytes(data).decode()
    escaped = plain.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    for body in (plain, wrapped, escaped, plain.rstrip("=")):
        assert asyncio.run(fetch(f"data:image/png;base64,{body}")) == data
    assert asyncio.run(fetch("DATA:;BASE64," + plain)) == data


async def test_percent_encoded_data_is_decoded() -> None:
    assert await fetch("data:image/svg+xml,%3Csvg%2F%3E%20") == b"<svg/> "


async def test_large_data_is_decoded_off_the_event_loop() -> None:
    data = bytes(3 << 20)
    url = "data:;base64," + base64.b64encode(data).decode()
    assert await fetch(url) == data


@pytest.mark.parametrize(
    "url", ["data:image/png", "data:;base64,%%%", "data:;base64,AAAAA", "data:;base64,é", "data:"]
)
async def test_broken_data_is_refused(url: str) -> None:
    assert (await refusal(url)).status == 400


async def test_too_much_data_is_refused() -> None:
    url = "data:;base64," + base64.b64encode(bytes(1001)).decode()
    assert (await refusal(url, max_bytes=1000)).status == 413
    assert (await refusal("data:," + "x" * 1001, max_bytes=1000)).status == 413
    exact = "data:;base64," + base64.b64encode(bytes(1000)).decode()
    assert len(await fetch(exact, max_bytes=1000)) == 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "media with blank"
    inside.mkdir()
    (inside / "picture.png").write_bytes(PICTURE)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media with blank 2").mkdir()
    (tmp_path / "media with blank 2" / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "inner-link").symlink_to(inside / "picture.png")
    os.mkfifo(inside / "pipe")
    return inside


async def test_files_in_the_allowed_folder_are_read(folder: Path) -> None:
    for name in ("picture.png", "inner-link", "../media with blank/picture.png"):
        url = f"file://{folder}/{name}".replace(" ", "%20")
        assert await fetch(url, allowed_local_path=folder) == PICTURE
    host = f"file://localhost{folder}/picture.png"
    assert await fetch(host, allowed_local_path=folder) == PICTURE


@pytest.mark.parametrize(
    "name",
    ["link", "../secret", "../media with blank 2/secret", "%2e%2e/secret", "/../../etc/passwd"],
)
async def test_files_outside_are_refused(name: str, folder: Path) -> None:
    error = await refusal(f"file://{folder}/{name}", allowed_local_path=folder)
    assert (error.status, error.code) == (400, "forbidden_url")


async def test_files_are_refused_where_no_folder_is_allowed(folder: Path) -> None:
    assert (await refusal(f"file://{folder}/picture.png")).code == "forbidden_url"
    url = f"file://elsewhere{folder}/picture.png"
    assert (await refusal(url, allowed_local_path=folder)).code == "forbidden_url"


@pytest.mark.parametrize("name", ["missing", "pipe", ""])
async def test_what_is_no_file_is_refused(name: str, folder: Path) -> None:
    error = await refusal(f"file://{folder}/{name}", allowed_local_path=folder)
    assert (error.status, error.code) == (400, "media_unreachable")


async def test_large_files_are_refused(folder: Path) -> None:
    url = f"file://{folder}/picture.png"
    error = await refusal(url, allowed_local_path=folder, max_bytes=len(PICTURE) - 1)
    assert error.status == 413


def test_wrong_settings_are_refused_at_start(tmp_path: Path) -> None:
    for options in ({"max_bytes": 0}, {"timeout_s": -1}, {"allowed_local_path": tmp_path / "no"}):
        with pytest.raises(ConfigError):
            MediaConfig(**options)
