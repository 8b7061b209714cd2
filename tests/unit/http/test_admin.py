"""The route that sets the log level, behind the admin key."""

import logging
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from services.http import errors
from services.http.admin import LOG_LEVEL_PATH, check_admin_key, log_levels

KEY = {"x-api-key": "secret"}


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    found = logging.getLogger()
    before = found.level
    found.setLevel("INFO")
    yield found
    found.setLevel(before)


def client(key: str) -> TestClient:
    app = FastAPI()
    app.include_router(log_levels(lambda request: check_admin_key(request, key)))
    errors.install(app, lambda error: None)
    return TestClient(app)


def test_the_level_is_set(root: logging.Logger) -> None:
    answer = client("secret").post(LOG_LEVEL_PATH, json={"level": "debug"}, headers=KEY)
    assert answer.status_code == 200 and answer.json() == {"level": "debug", "before": "info"}
    assert root.level == logging.DEBUG


@pytest.mark.parametrize(("key", "headers"), [("secret", {}), ("other", KEY), ("", KEY), ("", {})])
def test_nothing_without_the_key(root: logging.Logger, key: str, headers: dict[str, str]) -> None:
    answer = client(key).post(LOG_LEVEL_PATH, json={"level": "debug"}, headers=headers)
    assert answer.status_code == 401
    assert root.level == logging.INFO


def test_an_unknown_level_is_refused(root: logging.Logger) -> None:
    answer = client("secret").post(LOG_LEVEL_PATH, json={"level": "loud"}, headers=KEY)
    assert answer.status_code == 400
    assert root.level == logging.INFO


@pytest.mark.parametrize(
    ("said", "level"), [("DEBUG", logging.DEBUG), ("TRACE", logging.DEBUG), ("INFO", logging.INFO)]
)
def test_rtp_llms_clients_write_it_in_their_way(
    root: logging.Logger, said: str, level: int
) -> None:
    answer = client("secret").post(LOG_LEVEL_PATH, json={"log_level": said}, headers=KEY)
    assert answer.status_code == 200 and root.level == level
    answer = client("secret").post(LOG_LEVEL_PATH, json={"log_level": "LOUD"}, headers=KEY)
    assert answer.status_code == 400
