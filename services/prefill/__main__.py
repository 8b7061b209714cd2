"""`python -m services.prefill`."""

import sys

from services.worker.main import main
from services.worker.roles import PREFILL

sys.exit(main(PREFILL))
