"""`python -m services.encoder`."""

import sys

from services.encoder.role import role
from services.worker.main import main

sys.exit(main(role()))
