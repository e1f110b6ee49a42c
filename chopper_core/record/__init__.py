"""Recording a run: hooks in its processes, samplers, counter passes, and the manifest."""
