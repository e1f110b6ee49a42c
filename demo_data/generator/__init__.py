"""Simulates FSDP2 training of Llama-3-8B on one MI300X node and writes it as Kineto traces."""
