"""Plots need matplotlib, which only the extra `bench` brings."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def check_plots(parser: argparse.ArgumentParser, flag: str, wanted: object) -> None:
    """Ends the command with status 2 if a plot is `wanted` that cannot be drawn: now, and not once
    what it shows has been measured for hours."""
    if wanted and importlib.util.find_spec("matplotlib") is None:
        parser.error(f"{flag}: matplotlib is not installed (pip install -e '.[bench]')")


def curves(
    path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str
) -> None:
    """Lines by their names over the same axis, from 0; `across` and `up` name the axes, with their
    units."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    for name, points in lines.items():
        axis.plot(*zip(*points, strict=True), "o-", label=name)
    axis.set(xlabel=across, ylabel=up, xlim=(0, None), ylim=(0, None))
    axis.legend(fontsize=7)
    save(figure, path)


def bars(path: Path, values: Mapping[str, Mapping[str, float]], up: str) -> None:
    """A group of bars for each of `values`, a bar for each name in it; `up` names the axis."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    names = list(next(iter(values.values())))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [group + (number - (len(names) - 1) / 2) * width for group in range(len(values))]
        axis.bar(places, [value[name] for value in values.values()], width, label=name)
    axis.set_xticks(range(len(values)), list(values), fontsize=7)
    axis.set(ylabel=up)
    axis.axhline(1.0, color="grey", linewidth=0.8)
    axis.legend(fontsize=7)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Without the date, so that the same figures make the same file."""
    from matplotlib import pyplot

    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
