"""Plans which requests run in each step and applies the results to them. Pure: no tensors, no clock."""
