"""Systems of their own: sources, views, exports, findings and commands that the core lacks."""
