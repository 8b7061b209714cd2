"""Parts of the mutation run (scripts/mutate.py)."""
