"""Which requests a proxy can have served, by the workers that it knows."""

from __future__ import annotations

from proxy.gateway import Gateway


def able(gateway: Gateway, model: str = "") -> bool:
    """Whether requests without media can be served: to the model with this first name, or to any.
    Where an encoder is missing, no other proxy of the fleet would do better."""
    return _able(gateway, model, media=False)


def well(gateway: Gateway, model: str = "") -> bool:
    """As `able`, of requests with media too unless the model takes none."""
    return _able(gateway, model, media=True)


def _able(gateway: Gateway, model: str, *, media: bool) -> bool:
    models, fleet = gateway.models, gateway.fleet
    if models is None or not models.several:
        return fleet.able(pictures=media and (models is None or models.first.info.has_media))
    wanted = [models.known(model)] if model else models.all
    return any(fleet.able(media and one.info.has_media, one.name) for one in wanted)


def unencoded(gateway: Gateway) -> list[str]:
    """A sentence for each model whose requests with media are refused."""
    models = gateway.models
    names: list[str | None] = [None]
    if models is not None:
        taking = [one for one in models.all if one.info.has_media]
        names = [one.name if models.several else None for one in taking]
    return [why for name in names if (why := gateway.fleet.unencoded(name))]
