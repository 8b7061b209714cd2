"""Goodput of one fleet behind several proxies, past its capacity too.

trace         what is asked, when
processes     workers, proxies, master: started on free ports, ended by their own ids
round_robin   the peer that does as vLLM's disaggregated example does
load          sends a trace, measures what comes back
report        rows and bars
"""
