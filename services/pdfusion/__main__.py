"""`python -m services.pdfusion`."""

import sys

from services.pdfusion.role import role
from services.worker.main import main

sys.exit(main(role()))
