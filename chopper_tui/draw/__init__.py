"""Charts, tables and figures drawn as characters in named styles."""
