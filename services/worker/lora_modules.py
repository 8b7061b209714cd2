"""`--lora-modules`: names and folders of LoRA adapters."""

from __future__ import annotations

import msgspec

from protocol.errors import ConfigError
from protocol.registry import Name


def parse_modules(text: str) -> dict[str, str]:
    """Folders by name; `ConfigError` says what is wrong."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, folder = (piece.strip() for piece in part.partition("="))
        if not (name and equals and folder):
            raise ConfigError(f"--lora-modules: '{part[:200]}' is not of the form name=folder")
        try:
            msgspec.convert(name, Name)
        except msgspec.ValidationError as error:
            raise ConfigError(f"--lora-modules: name '{name[:200]}': {error}") from None
        if name in found:
            raise ConfigError(f"--lora-modules: '{name[:200]}' is given twice")
        found[name] = folder
    return found
