"""Transports: bytes from a peer's registered memory into ours.

base                the interface
shm                 same host: the peer's memory is handed over, mapped and copied from
nixl                registered memory over NIXL (UCX backend)
ucx                 tagged sends over UCX (ucxx)
files               a folder that all hosts see
staged              from and to devices whose memory the others cannot hand over
composite_transfer  transfers made of others, one after the other
background_poller   polling while an engine computes
"""
