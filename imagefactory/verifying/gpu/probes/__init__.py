"""The probes: each file has functions that run on the GPU, by name, and faults to plant."""
