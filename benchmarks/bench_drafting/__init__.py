"""What guessing tokens ahead is worth: acceptance and speed-up of both methods."""
