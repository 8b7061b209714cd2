"""Faults under load: every part of a stack, and one of two hosts."""
