"""Requests that wait for a worker: a bounded queue with priorities and fair shares, no clock."""
