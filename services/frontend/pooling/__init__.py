"""Vectors, scores and classes instead of text.

model          what a model directory says of them
inputs         requests for them to prompts
token_weights  weights of tokens as RTP-LLM's sparse vector
"""
