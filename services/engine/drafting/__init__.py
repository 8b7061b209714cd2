"""Guesses of what a request puts out next, which the model then checks several at a time."""
