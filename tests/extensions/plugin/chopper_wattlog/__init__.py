"""A plugin of Chopper that adds one of each: a source, a view, a metric, a finding, an export."""
