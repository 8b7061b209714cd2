"""What the frontend knows of a model family: how a picture, clip or audio becomes tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from protocol.errors import ConfigError, InvalidRequest
from protocol.types import FrameSampling, Modality
from services.frontend.clips.sampling import Clip
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer


@dataclass(frozen=True)
class Extent:
    """`length`: rows of embeddings, hence placeholder tokens. `grid`, and `seconds` for its
    `seconds_per_grid`: as in `MMItem`. `before`: what is written before each of the runs of equal
    length that these tokens are, where they stand apart: a clip's t, a picture's rows or tiles."""

    length: int
    grid: tuple[int, ...] = ()
    seconds: float = 0.0
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placeholder:
    """How one picture looks in a prompt.

    `written`: what the chat template writes for it. `text`: what that becomes before tokenizing;
    it holds `pad` exactly once. `pad`: the token that stands where embeddings go, repeated in the
    token ids as often as the picture has embeddings. `inline`: what to put into the text of a
    message if the template takes strings only, and for each run of an extent that has several.
    `behind`: what follows the last of these.
    """

    written: str
    text: str
    pad: str
    pad_id: int  # token id of `pad`
    inline: str
    behind: str = ""


class Clips(ABC):
    """How a family takes clips; as with pictures, it must agree with transformers' own processor.

    `bounds`: areas to which frames are resized. `min_frames` and `max_frames`: how many are taken.
    """

    bounds: PixelBounds
    min_frames: int
    max_frames: int

    @property
    @abstractmethod
    def processor(self) -> dict[str, Any]:
        """Everything the embedding depends on besides weights, bytes and what is asked for."""

    @abstractmethod
    def measure(
        self, clip: Clip, frames: FrameSampling, bounds: PixelBounds | None = None
    ) -> Extent:
        """Tokens of a clip; `bounds` None: the model's own. `InvalidRequest` if it is refused."""

    @abstractmethod
    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        """Tokens of a clip known by the metadata its encoder reported, without its bytes."""


class Audio(ABC):
    """How a family takes audio; as with pictures, it must agree with transformers' own processor.

    `rate`: samples a second that the model hears. `most_seconds`: of one item.
    """

    rate: int
    most_seconds: float

    @property
    @abstractmethod
    def processor(self) -> dict[str, Any]:
        """Everything the embedding depends on besides weights and bytes."""

    @abstractmethod
    def measure(self, samples: int) -> Extent:
        """Tokens of so many samples at `rate`; `InvalidRequest` if they are too few or too many."""

    @abstractmethod
    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        """Tokens of audio known by the metadata its encoder reported, without its bytes."""


class Family(ABC):
    """One file per family implements this; it must agree with transformers' own processor.

    `placeholders` has an entry for every modality the family takes.
    """

    placeholders: Mapping[Modality, Placeholder]

    @property
    @abstractmethod
    def processor(self) -> dict[str, Any]:
        """Everything the embedding depends on besides weights and bytes; goes into `mm_hash`."""

    @property
    def audio(self) -> Audio | None:
        """How audio is taken; None if the family takes none."""
        return None

    @property
    def bounds(self) -> PixelBounds | None:
        """Areas to which pictures are resized; None if these cannot be chosen."""
        return None

    @property
    def clips(self) -> Clips | None:
        """How clips are taken; None if the family takes none."""
        return None

    @property
    def why_no_clips(self) -> str:
        """What the model's directory has that its clips are refused for, although its family takes
        clips; empty if nothing."""
        return ""

    @abstractmethod
    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        """Tokens of a picture of this size in pixels, resized within `bounds`, None for the model's
        own; `InvalidRequest` if it is refused."""

    @abstractmethod
    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        """Tokens of a picture known by the metadata its encoder reported, without its bytes."""


def processor_identity(info: ModelInfo) -> dict[str, Any]:
    """Class, version and options of the media processor as the model directory gives them."""
    options = info.processor or {}
    name = options.get("image_processor_type") or options.get("feature_extractor_type", "")
    # By version too: another one may resize the same bytes to other pixels.
    return {"processor": name, "transformers": _transformers_version(), "options": options}


def _transformers_version() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""


def options_of(info: ModelInfo) -> dict[str, Any]:
    """The image processor's options; `ConfigError` if the directory has none."""
    if info.processor is None:
        raise ConfigError(f"{info.path}: a vision-language model needs preprocessor_config.json")
    return info.processor


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token that the family needs; `ConfigError` if the tokenizer lacks it."""
    text = tokenizer.token(token_id)
    # Placeholders are written as text: one that is no single token then has no place to expand.
    if text is None or tokenizer.encode(text) != [token_id]:
        raise ConfigError(f"the tokenizer has no token {token_id}, which the model uses for media")
    return text


def named_token(info: ModelInfo, name: str) -> str:
    """A token of tokenizer_config.json, "" without one."""
    value = info.tokenizer_config.get(name) or ""
    return str(value["content"] if isinstance(value, dict) else value)


def special_token(tokenizer: Tokenizer, text: str) -> str:
    """A token that the family needs, by its text; `ConfigError` if the tokenizer lacks it."""
    if tokenizer.id(text) is None:
        raise ConfigError(f"the tokenizer has no token {text}, which the model uses for media")
    return text


def refused(message: str, code: str = "invalid_image") -> InvalidRequest:
    return InvalidRequest(message, code=code)


def grid_in(metadata: Mapping[str, Any], key: str) -> tuple[int, int, int]:
    """A (t, h, w) of positive integers; `InvalidRequest` if it is missing or malformed.

    Clients write it as a list or, with the model's batch axis, as a list of one list.
    """
    grid = metadata.get(key)
    if isinstance(grid, list) and len(grid) == 1:
        grid = grid[0]
    if not isinstance(grid, list) or len(grid) != 3:
        raise InvalidRequest(f"{key} must be a list of three integers")
    # type(), for True is an int.
    if not all(type(n) is int and 0 < n < 1 << 31 for n in grid):
        raise InvalidRequest(f"{key} must hold positive integers")
    t, h, w = grid
    return t, h, w


def size_in(metadata: Mapping[str, Any], key: str) -> tuple[int, int]:
    """The (height, width) in pixels of a picture whose grid says no more than that, as (1, height,
    width); `InvalidRequest` as of `grid_in`, or if it is not one picture."""
    t, height, width = grid_in(metadata, key)
    if t != 1:
        raise InvalidRequest(f"{key} {[t, height, width]} is not the size of a picture")
    return height, width


class Text(Family):
    def __init__(self) -> None:
        self.placeholders = {}

    @property
    def processor(self) -> dict[str, Any]:
        return {}

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        raise InvalidRequest("this model takes no pictures")

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        raise InvalidRequest("this model takes no pictures")
