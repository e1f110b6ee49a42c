"""The terminal: the command line and the explorer; it holds no analysis."""
