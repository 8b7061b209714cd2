"""`python -m services.encoder`."""

import sys

from services.worker.main import main
from services.worker.roles import ENCODE

sys.exit(main(ENCODE))
