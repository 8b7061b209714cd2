"""Encoder-cache connectors.

local        one process
files        shared storage: folders of entries, lease_files, loads (file_load)
arena        over a transport that reads a peer's memory; where producers of one host are found
store        the producer's side of it: entries in a region, who waits for them (wait_queue)
             and who may read which (grants)
reader       the consumer's side: loads under way (load), memory that they fill (buffer_pool)
holders      the requests that entries are kept for
"""
