"""Whether a model takes pictures: `python -m scripts.model_kind DIR` prints "vision" or "text".

Exit status 1 if the frontend cannot load DIR; what is printed then is the reason. Needs no torch.
"""

import sys
from pathlib import Path

from protocol.errors import ConfigError
from services.frontend.config import FrontendConfig
from services.frontend.render import Frontend

WEIGHTS = ("*.safetensors", "*.bin")


def main(folder: Path) -> int:
    """Prints the kind, or the reason why there is none; returns the exit status."""
    try:
        has_media = Frontend.load(FrontendConfig(model=folder)).info.has_media
    except ConfigError as error:
        print(error)
        return 1
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        print(f"{folder} has no weights ({', '.join(WEIGHTS)})")
        return 1
    print("vision" if has_media else "text")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
