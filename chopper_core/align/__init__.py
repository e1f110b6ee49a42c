"""From event tables to labels: which iteration, phase, layer and operation a kernel belongs to."""
