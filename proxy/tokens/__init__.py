"""The `tokens` dialect: requests rendered here, token ids to and from Triptych workers."""
