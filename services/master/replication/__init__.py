"""What masters that share a fleet tell each other, through Redis."""
