"""Chakra execution traces: `.et` files, their JSON variant, and host traces of PyTorch."""
