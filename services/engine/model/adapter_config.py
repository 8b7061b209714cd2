"""adapter_config.json of a LoRA adapter: what it says of the arithmetic, and which is served."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.errors import InvalidRequest

CONFIG = "adapter_config.json"
_Rank = Annotated[int, Meta(ge=1, le=1 << 16)]
# PEFT takes any regular expression. Each is matched with the name of each layer while the engine
# makes no step, and nothing bounds how long Python takes for one: so only what takes little is
# served. `_MANY` are the parts that a match may try in many ways, of which a key has few.
_DIGIT = r"(?:\\d|\[(?:\d(?:-\d)?)+\])"
_MANY = rf"\.[*+]|{_DIGIT}[*+]|\((?:\w+\|)*\w+\)"
_SERVED = re.compile(rf"\^?(?:{_MANY}|{_DIGIT}|\\?\.|[\w-])+\$?", re.ASCII)
_LONGEST_KEY = 256  # characters
_MOST_KEYS = 2048  # PEFT's own tools write one for each layer
_MOST_MANY, _MOST_MANY_IN_ALL = 2, 16


class AdapterConfig(msgspec.Struct, frozen=True):
    """The fields that change what is computed; see `unserved`."""

    peft_type: str  # LORA, or it is refused
    r: _Rank  # the rank
    lora_alpha: float = 8.0  # over the rank: how much an adapter counts
    use_rslora: bool = False  # over the root of the rank instead
    use_dora: bool = False  # refused: it changes the norms of weights
    fan_in_fan_out: bool = False  # refused: weights lie the other way round
    lora_bias: bool = False  # refused: B has a bias
    bias: str = "none"  # none, or it is refused
    modules_to_save: list[str] | None = None  # layers given whole, which are refused
    rank_pattern: dict[str, _Rank] | None = None  # other ranks, by patterns of layer names
    alpha_pattern: dict[str, float] | None = None  # other values of lora_alpha, by the same

    def unserved(self) -> str:
        """The field whose value this engine has no arithmetic for, "" if there is none."""
        flags = ("use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save")
        found = [name for name in flags if getattr(self, name)]
        return "bias" if self.bias != "none" else next(iter(found), "")


class Scales:
    """What B·A of each layer is multiplied by."""

    def __init__(self, name: str, config: AdapterConfig) -> None:
        """`InvalidRequest` if the adapter `name` has a pattern that is not served."""
        ranks, alphas = config.rank_pattern or {}, config.alpha_pattern or {}
        for field, pattern in (("rank_pattern", ranks), ("alpha_pattern", alphas)):
            if why := _unserved(pattern):
                raise refused(name, f"{CONFIG}: {field}: {why}")
        self._config = config
        self._ranks = [(_ending(key), value) for key, value in ranks.items()]
        self._alphas = [(_ending(key), value) for key, value in alphas.items()]

    def of(self, layer: str) -> float:
        """PEFT's rule: the first key counts that matches the end of a layer's name."""
        config = self._config
        rank = next((r for key, r in self._ranks if key.fullmatch(layer)), config.r)
        alpha = next((a for key, a in self._alphas if key.fullmatch(layer)), config.lora_alpha)
        return alpha / math.sqrt(rank) if config.use_rslora else alpha / rank


def _ending(key: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({key})")


def _unserved(pattern: Mapping[str, object]) -> str:
    """Why a pattern's keys are not served, "" if they are."""
    if len(pattern) > _MOST_KEYS:
        return f"it has more than {_MOST_KEYS} keys"
    many = 0
    for key in pattern:
        found = len(re.findall(_MANY, key, re.ASCII))
        many += found
        if not _is_served(key) or found > _MOST_MANY or many > _MOST_MANY_IN_ALL:
            return (
                f"'{key[:200]}' is beyond the regular expressions that are served: names with '.',"
                rf" '\d', '[0-9]', '^' and '$', and of '.*', '\d+' and '(a|b)' {_MOST_MANY} in a"
                f" key and {_MOST_MANY_IN_ALL} in all"
            )
    return ""


def _is_served(key: str) -> bool:
    if len(key) > _LONGEST_KEY or not _SERVED.fullmatch(key):
        return False
    try:
        _ending(key)
    except re.error:  # [9-0]
        return False
    return True


def decoded(name: str, data: bytes) -> AdapterConfig:
    """The configuration of the adapter `name`; `InvalidRequest` if it is none of LoRA."""
    try:
        config = msgspec.json.decode(data, type=AdapterConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(name, f"{CONFIG}: {error}") from None
    if config.peft_type != "LORA":
        raise refused(name, f"{CONFIG}: peft_type '{config.peft_type[:64]}' is not LORA")
    if field := config.unserved():
        raise refused(name, f"{CONFIG}: {field} is set, which this engine does not serve")
    return config


def refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"LoRA adapter '{name}': {why}", param="lora_path")
