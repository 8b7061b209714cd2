"""A policy by its name."""

from __future__ import annotations

import importlib
import random
from types import MappingProxyType

from protocol.errors import ConfigError
from protocol.plugins import find_class
from services.master.config import MasterConfig
from services.master.placement.policies.base import Policy
from services.master.placement.policies.cache_aware import CacheAwarePolicy, SMGPolicy
from services.master.placement.policies.cost import CostPolicy
from services.master.placement.policies.kv import KVPolicy
from services.master.placement.policies.rtp import RTPPolicy
from services.master.placement.policies.simple import (
    LeastLoadedPolicy,
    RandomPolicy,
    RoundRobinPolicy,
)

POLICIES: MappingProxyType[str, type[Policy]] = MappingProxyType(
    {
        "cache_aware": CacheAwarePolicy,
        "cost": CostPolicy,
        "kv": KVPolicy,
        "least_loaded": LeastLoadedPolicy,
        "random": RandomPolicy,
        "round_robin": RoundRobinPolicy,
        "rtp": RTPPolicy,
        "smg": SMGPolicy,
    }
)


def load_policy(config: MasterConfig, rng: random.Random) -> Policy:
    """The policy that `config.policy` names, with hyphens as Dynamo writes them or without;
    `ConfigError` if there is none."""
    name = config.policy
    own = POLICIES.get(name.replace("-", "_"))
    kind = own or find_class("policies", name, Policy) or _imported(name)
    return kind(config, rng)


def _imported(path: str) -> type[Policy]:
    module, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(
            f"--policy: unknown policy '{path}'; choose one of {', '.join(POLICIES)}, a class as "
            "module:Class, or one that an installed package registers"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--policy: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(f"--policy: '{path}' is no subclass of {Policy.__module__}.Policy")
    return found
