"""OpenAI's Responses API before the frontend of chats.

chats    a request to the chat it stands for
output   gains to output items, and to the events that tell of them
answer   a response around its items: whole, and as a stream
"""
