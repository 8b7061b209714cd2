"""The version that processes tell of themselves."""

import importlib.metadata

import pytest

from services.http.version import version


def test_it_is_that_of_the_installed_package() -> None:
    assert version() == importlib.metadata.version("triptych")


def test_a_folder_in_which_nothing_was_installed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert version() == "unknown"
