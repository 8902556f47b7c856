"""Who runs in the next step, and what the step's results mean for each request. Pure: no tensor, no clock but
arrival.
"""
