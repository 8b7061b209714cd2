"""Encoder-cache connectors.

local        one process
files        shared storage: folders of entries, marks of requests, loads (file_load)
arena        over a transport that reads a peer's memory
store        the producer's side of it: entries in a region, who waits for them (wants)
reader       the consumer's side: loads under way (load), memory that they fill (keep)
holders      the requests that entries are kept for
"""
