"""`python -m services --role ROLE ...`, or with ROLE_TYPE in the environment.

Roles by any of their names: encode, encoder, VIT; prefill; decode; pdfusion;
any (encode, prefill or decode, as a master says); frontend (the proxy).
"""

from __future__ import annotations

import os
import runpy
import sys
from types import MappingProxyType

MODULES = MappingProxyType(
    {
        "encode": "services.encoder",
        "encoder": "services.encoder",
        "vit": "services.encoder",
        "prefill": "services.prefill",
        "decode": "services.decode",
        "prefill_decode": "services.decode",
        "pdfusion": "services.pdfusion",
        "any": "services.pdfusion.any",
        "frontend": "proxy",
    }
)


def role_of(argv: list[str]) -> tuple[str, list[str]]:
    """The role asked for, and the other arguments."""
    for i, word in enumerate(argv):
        if word == "--role" and i + 1 < len(argv):
            return argv[i + 1], argv[:i] + argv[i + 2 :]
        if word.startswith("--role="):
            return word.removeprefix("--role="), argv[:i] + argv[i + 1 :]
    return os.environ.get("ROLE_TYPE", "pdfusion"), argv


def main() -> int:
    role, rest = role_of(sys.argv[1:])
    module = MODULES.get(role.lower())
    if module is None:
        print(
            f"error: --role or ROLE_TYPE: {role!r} is not one of {', '.join(MODULES)}",
            file=sys.stderr,
        )
        return 2
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
