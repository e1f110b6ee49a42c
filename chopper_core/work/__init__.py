"""Work models of operators: FLOPs, bytes and traffic from shapes."""
