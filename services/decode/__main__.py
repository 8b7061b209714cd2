"""`python -m services.decode`."""

import sys

from services.worker.main import main
from services.worker.roles import DECODE

sys.exit(main(DECODE))
