"""Vectors, scores and classes instead of text.

model   what a model directory says of them
inputs  requests for them to prompts
"""
