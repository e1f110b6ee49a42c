"""The core of Chopper: from trace files to frames; it knows no terminal."""
