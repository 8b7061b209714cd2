"""The fleet that flags describe: its workers, and where encoders push embeddings to."""

from __future__ import annotations

from protocol.encoder_cache import is_consumer_address, split_addresses
from protocol.errors import ConfigError
from protocol.flag_lists import NO_URLS
from proxy.config import ProxyConfig
from proxy.fleet.dns import names_of
from proxy.fleet.fleet import Fleet
from proxy.fleet.own_model import OwnModels
from proxy.fleet.worker import Breaker
from proxy.worker_options import split_urls

_ADDRESSES, _SIZE = "--ec-consumer-zmq-addrs", "--ec-consumer-dp-size"


def make_fleet(config: ProxyConfig, *, pools: bool = False, own: OwnModels | None = None) -> Fleet:
    """`ConfigError` without a worker that decodes, where none can be added later. A model that
    `pools` needs only workers that prefill. `own`: as of `Fleet`."""
    fleet = Fleet.from_urls(
        config.encode_servers_urls,
        config.prefill_servers_urls,
        config.decode_servers_urls,
        lambda: Breaker(config.breaker_failures, config.breaker_cooldown),
        own,
    )
    name_consumers(fleet, config)
    fleet.force_dialect(config.dialect)
    named = fleet.decode or any(name.role == "decode" for name in names_of(config))
    if pools:
        named = named or fleet.prefill or any(name.role == "prefill" for name in names_of(config))
    if not named and not config.master_url and not config.admin_api_key:
        flag = "--prefill-servers-urls" if pools else "--decode-servers-urls"
        raise ConfigError(
            f"{flag}: at least one worker is needed, or --master-url, or an --admin-api-key to add"
            " one with"
        )
    return fleet


def name_consumers(fleet: Fleet, config: ProxyConfig) -> None:
    """Give each decode worker of the flags its addresses, one for each data-parallel rank. Raises
    `ConfigError`."""
    addresses, ranks = split_addresses(config.ec_consumer_zmq_addrs), config.ec_consumer_dp_size
    if not addresses:
        if ranks > 1:
            raise ConfigError(f"{_SIZE}: it counts the ranks in {_ADDRESSES}, which is empty")
        return
    urls, names = split_urls("--decode-servers-urls", config.decode_servers_urls)
    if names:
        raise ConfigError(
            f"{_ADDRESSES}: the addresses follow --decode-servers-urls, and how many workers"
            f" dns+http://{names[0][0]}:{names[0][1]} stands for is not known"
        )
    if config.prefill_servers_urls.strip().lower() not in NO_URLS:
        raise ConfigError(
            f"{_ADDRESSES} works only with workers that prefill and decode: set"
            " --prefill-servers-urls none, or add prefill workers through POST /instances"
        )
    if len(addresses) != len(urls) * ranks:
        raise ConfigError(
            f"{_ADDRESSES}: {len(addresses)} addresses, but {len(urls)} decode workers of {ranks}"
            f" ranks ({_SIZE}) need {len(urls) * ranks}"
        )
    for address in addresses:
        if not is_consumer_address(address):
            raise ConfigError(f"{_ADDRESSES}: '{address}' is not tcp://HOST:PORT")
    for number, url in enumerate(urls):
        worker = fleet.find("decode", url)
        assert worker is not None
        worker.ec_zmq_addrs = tuple(addresses[number * ranks : (number + 1) * ranks])
