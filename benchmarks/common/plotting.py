"""Plots need matplotlib, which only the extra `bench` brings."""

from __future__ import annotations

import argparse
import importlib.util


def check_plots(parser: argparse.ArgumentParser, flag: str, wanted: object) -> None:
    """Ends the command with status 2 if a plot is `wanted` that cannot be drawn: now, and not once
    what it shows has been measured for hours."""
    if wanted and importlib.util.find_spec("matplotlib") is None:
        parser.error(f"{flag}: matplotlib is not installed (pip install -e '.[bench]')")
