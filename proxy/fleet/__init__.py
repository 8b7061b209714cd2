"""The workers that this proxy knows, and how they are."""
