"""Parts for Triptych, found by the entry points in pyproject.toml."""
