"""Anthropic's Messages API before the frontend of chats.

chats    a request to the chat it stands for
answer   gains to content blocks: whole, and as a stream
"""
