"""Which workers there are, their load, and their health."""
