"""`python -m services.mock --role encode|prefill|decode|prefill_decode|pdfusion|any`."""

import sys

from services.mock.main import main

if __name__ == "__main__":
    sys.exit(main())
