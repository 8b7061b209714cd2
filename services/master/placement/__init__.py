"""One request onto workers: what each choice costs, and who waits."""
