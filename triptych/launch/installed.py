"""Whether the packages of the extra `worker` are here."""

from importlib.util import find_spec

_NEEDED = ("torch", "transformers", "safetensors")


def missing_for_workers() -> str:
    """What to do about packages that workers need and that are not installed; "" if all are."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return ""
    return f"workers need {', '.join(missing)}: pip install 'triptych[worker]'"
