"""`python -m benchmarks.check_plan`: the planner's forecasts beside fleets that are run for real.

workloads   which fleets, at which loads, within which objectives
asks        requests of a trace as bodies that a client sends
live_clock  calls at their times, on the event loop's clock
load        sends a trace as it is simulated, and notes what becomes of each request
processes   mock workers of a profile's speed and sizes, a master, a proxy
figures     what a run was worth, predicted and measured, side by side
"""
