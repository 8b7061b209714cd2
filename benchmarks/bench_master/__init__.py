"""A master at a thousand workers and a million blocks."""
