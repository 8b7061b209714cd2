"""Two hundred mutated requests on all routes, in a second or two; `benchmarks.fuzz` has more."""

import asyncio
from urllib.parse import urlsplit

from benchmarks.fuzz.cases import Target, case
from benchmarks.fuzz.client import attack
from benchmarks.fuzz.samples import BODILESS, SAMPLES
from benchmarks.fuzz.servers import HEADERS, TRACE, routes, targets
from tests.security.conftest import Site
from tests.support.stack import Process, call

SEED, COUNT = 20, 200
NAMES = {"services.master": "master"}


def reached(one: Process) -> Target:
    address = urlsplit(one.url)
    assert address.hostname and address.port
    name = NAMES.get(one.module, one.module)
    return Target(name, address.hostname, address.port, (), HEADERS)


def listed(site: Site) -> list[Target]:
    """What tells its routes."""
    return [reached(one) for one in (site.master, site.worker, *site.proxies)]


def test_no_request_is_a_server_error_and_all_goes_on_as_before(site: Site) -> None:
    before = site.served()
    assert {status for status, _ in before} == {200}
    attacked = targets(listed(site))
    found = asyncio.run(attack(case(SEED, number, attacked) for number in range(COUNT)))
    assert found.defects == [] and found.sent == COUNT
    assert sum(found.statuses[status] for status in ("200", "400")) > COUNT / 2, found.statuses
    assert [one.process.poll() for one in site.services] == [None] * len(site.services)
    assert [line for one in site.services for line in one.log if TRACE.search(line)] == []
    assert site.served() == before
    for one in (site.worker, site.double):
        assert call(f"{one.url}/integrity", headers=HEADERS)[1]["problems"] == []


def test_each_route_that_takes_a_body_is_attacked_with_one(site: Site) -> None:
    found = {route for one in listed(site) for route in routes(one)}
    changing = {path for path, method in found if method != "GET"}
    assert len(changing) > 50
    assert sorted(changing - SAMPLES.keys() - BODILESS) == [], "no sample, and not bodiless"
    assert sorted(SAMPLES.keys() & BODILESS) == []
    assert sorted((SAMPLES.keys() | BODILESS) - {path for path, _ in found}) == [], "no such route"
