"""Dashboards and alerts before a real Prometheus that scrapes a running stack: what is asked
(`panels`, `alerts`), the processes (`processes`), the command (`__main__`)."""
