"""The options and the fleet that suit each policy, by runs on one seed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.simulate.bench import Bench, best_fleet, best_of
from benchmarks.simulate.contenders import OURS, Contender, blind, published, trials
from benchmarks.simulate.records import Shape

Line = tuple[Contender, float]  # with the load that it sustains on the seed


def tuned(bench: Bench, policies: Sequence[str], seed: int, draws: int) -> list[Line]:
    """The best of each group of each policy."""
    lines: list[Line] = []
    start = bench.case.pace
    for policy in policies:
        lines += entries(bench, policy, seed, start, draws)
        start = lines[-1][1]
    return exchanged(bench, lines, seed)


def entries(bench: Bench, policy: str, seed: int, start: float, draws: int) -> list[Line]:
    """The best of each group, with its load on this seed: as published, in each kind, and tuned,
    each with the fleet that suits it. Trials are on the fleets that suited the published kinds of
    workers of one role, and begin at the best load found; of those that are told the objectives
    apart from others. What was found best so is tried with workers of the role any as well, where
    the policy has them."""
    found = []
    for kind in published(policy, bench.case.shapes):
        found.append(best_fleet(bench, kind, seed, start))
        start = found[-1][1]
    fixed = [line for line in found if not line[0].elastic]
    moves = len(fixed) < len(found)
    shapes = list(dict.fromkeys(one.shape for one, _ in fixed))
    for tells in sorted({one.tells for one, _ in fixed}):
        load = max(load for one, load in fixed if one.tells == tells)
        choices = trials(
            policy, shapes, draws, seed, tells=tells, max_running=bench.profile.max_running
        )
        one, better = best_of(bench, choices, seed, load, load)
        if better > load:
            found.append(best_fleet(bench, [one], seed, better))
            if moves:
                free = found[-1][0].of_role_any()
                found.append((free, bench.sustained(free, seed, found[-1][1])))
    groups: dict[Hashable, Line] = {}
    for line in found:
        if line[1] > groups.get(line[0].group, (None, 0.0))[1]:
            groups[line[0].group] = line
    return list(groups.values())


def exchanged(bench: Bench, lines: Sequence[Line], seed: int) -> list[Line]:
    """Each that refuses without objectives, with the limits and the fleet that another does best
    with, where it does better so: draws are too few for every policy to meet what suits it."""
    limits = blind(bench.profile.max_running).keys()
    offers: list[tuple[Mapping[str, Any], Shape]] = []
    for one, _ in lines:
        offer = {name: one.options[name] for name in one.options if name in limits}, one.shape
        if offer[0] and offer not in offers:
            offers.append(offer)
    found_lines = []
    for one, load in lines:
        own = {name: one.options[name] for name in one.options if name not in limits}
        choices = [] if one.policy == OURS and one.tells else _offered(one, own, offers)
        best, found = best_of(bench, choices, seed, load, load) if choices else (one, load)
        better = found > load
        found_lines.append(best_fleet(bench, [best], seed, found) if better else (one, load))
    return found_lines


def _offered(
    one: Contender, own: Mapping[str, Any], offers: Sequence[tuple[Mapping[str, Any], Shape]]
) -> list[Contender]:
    """With each offer's limits, beside its `own` options or the published ones, on its fleet and on
    the offer's."""
    words = ["told"] * one.tells + ["tuned"] + ["any"] * one.elastic
    found = [replace(one, kind=", ".join(words))]
    for limits, shape in offers:
        for options in ({**own, **limits}, limits):
            for place in (one.shape, shape):
                choice = replace(found[0], options=options, shape=place)
                if choice not in found:
                    found.append(choice)
    return found[1:]
