"""`python -m services.prefill`."""

import sys

from services.prefill.role import role
from services.worker.main import main

sys.exit(main(role()))
