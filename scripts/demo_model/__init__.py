"""Parts of the training of the demonstration model."""
