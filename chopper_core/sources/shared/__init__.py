"""Reading that formats share: bytes, JSON, CSV, columns that grow."""
