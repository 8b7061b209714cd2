"""`python -m services.pdfusion.any`: a worker whose role a master changes while it runs."""

import sys

from services.pdfusion.role import any_role
from services.worker.main import main

if __name__ == "__main__":
    sys.exit(main(any_role()))
