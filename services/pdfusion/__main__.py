"""`python -m services.pdfusion`."""

import sys

from services.worker.main import main
from services.worker.roles import PDFUSION

sys.exit(main(PDFUSION))
