"""Random keys, mouse, pastes and resizes on the explorer."""
