"""`triptych plan`: the cheapest fleet that serves a workload within objectives, by simulation.

options   what is asked for
search    fleets that keep the objectives, the cheapest of them, and those around it
report    the answer for people and for files
"""
