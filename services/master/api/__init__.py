"""HTTP routes of a master, its clock and its metrics."""
