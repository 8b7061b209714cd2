"""`python -m services.pdfusion.any`: a worker whose role a master changes while it runs."""

import sys

from services.worker.main import main
from services.worker.roles import ANY

if __name__ == "__main__":
    sys.exit(main(ANY))
