"""Parts that several views and findings share."""
