"""`--lora-modules`: names and folders of LoRA adapters."""

from __future__ import annotations

from protocol.errors import ConfigError


def parse_modules(text: str) -> dict[str, str]:
    """Folders by name; `ConfigError` says what is wrong."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, folder = (piece.strip() for piece in part.partition("="))
        if not (name and equals and folder):
            raise ConfigError(f"--lora-modules: '{part[:200]}' is not of the form name=folder")
        if name in found:
            raise ConfigError(f"--lora-modules: '{name[:200]}' is given twice")
        found[name] = folder
    return found
