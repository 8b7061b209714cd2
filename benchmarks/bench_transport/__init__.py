"""Our connectors beside the libraries that they stand on."""
