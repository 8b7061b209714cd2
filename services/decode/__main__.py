"""`python -m services.decode`."""

import sys

from services.decode.role import role
from services.worker.main import main

sys.exit(main(role()))
