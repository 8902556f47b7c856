"""Who runs in the next step, and what its results mean for each request. Pure: no tensors, no clock."""
