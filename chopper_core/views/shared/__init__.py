"""What several views and findings share."""
