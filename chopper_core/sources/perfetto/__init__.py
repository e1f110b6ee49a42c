"""Perfetto's own traces: of torch's CUPTI backend, rocprofv3 and rocprof-sys."""
