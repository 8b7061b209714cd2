"""The tree in numbers, to compare two checkouts: `python -m scripts.tree [--tree DIR]`."""
