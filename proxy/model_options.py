"""The proxy's flags for the models that it renders for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

from protocol.errors import ConfigError
from protocol.options import option
from services.frontend.config import FrontendConfig
from services.frontend.options import FrontendOptions

_SEVERAL = ";"
"""Stands between several models, and between the names of one and those of the next."""


@dataclass(frozen=True)
class ModelOptions(FrontendOptions):
    """A worker has one model, a proxy may have several: `to_configs` in place of `to_config`."""

    model: str = option(
        "models/demo",
        "Directory of the model: config.json, tokenizer.json and weights, as the hub has them; or"
        " its name at the hub, if the hub's local cache has it; or demo. Given again, or with"
        f" {_SEVERAL} between models: the proxy serves them all. A worker, which must be Triptych's"
        " (--dialect tokens), serves the model that it has a name of (--served-model-name). The"
        " first model answers requests that name none, and calls that cannot name one (POST /,"
        " /tokenizer/encode, GenerateStreamCall). Other flags hold for all models.",
        "path",
        env="MODEL",
        section="Model",
        between=_SEVERAL,
    )
    served_model_name: str = option(
        "",
        "Comma-separated names by which clients may call the model; the first one is shown in"
        " answers. Empty: the value of --model. Of several models: once for each, in the order of"
        f" --model, or with {_SEVERAL} between them.",
        "names",
        between=_SEVERAL,
    )

    def to_configs(self) -> list[FrontendConfig]:
        """Of each model; `ConfigError` names what is wrong."""
        models, names = self.models, self.served_model_name.split(_SEVERAL)
        if len(names) > len(models):
            raise ConfigError(
                f"--served-model-name: it names {len(names)} models, but --model is"
                f" {len(models)}: names of one model stand in one list, with commas between them"
            )
        each = zip_longest(models, names, fillvalue="")
        return [replace(self, model=one, served_model_name=its).to_config() for one, its in each]

    @property
    def models(self) -> list[str]:
        """Of --model."""
        several = [one for one in self.model.split(_SEVERAL) if one.strip()]
        return several or [self.model]

    @property
    def served_names(self) -> tuple[str, ...]:
        """Of --served-model-name, for all models."""
        names = self.served_model_name.replace(_SEVERAL, ",").split(",")
        return tuple(name.strip() for name in names if name.strip())
