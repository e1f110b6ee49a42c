"""The PyTorch profiler's traces."""
