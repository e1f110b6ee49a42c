"""The terminal: the command line and the explorer; it holds no analysis."""

import os

__version__ = "0.1.0"

# Nothing here multiplies matrices, but numpy's linear algebra starts a thread per processor when it
# is imported, and they take a third of the processor time of `chopper show`.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
