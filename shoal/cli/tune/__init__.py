"""The verb `tune`: a search for the instances, batch size and queue delay with the most throughput under a goal.

`search.py` decides what is tried, `trial_server.py` starts a server of its own, and sends it requests as
`bench` does.
"""
