"""Workers killed under load for minutes, and their books held against the start."""
