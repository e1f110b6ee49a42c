"""Damaged and hostile input: small true files of each format, and what is done to them."""
