"""`python -m triptych`."""

import sys

from triptych.commands import main

sys.exit(main())
