"""Logs of trainers: what they say of each step, such as its time, tokens per second and loss."""
