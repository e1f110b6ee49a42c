"""Code that several formats share: bytes, text, JSON, CSV, growing columns."""
