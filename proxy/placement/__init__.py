"""Where the stages of a request run: as a master says, or by the proxy's own view."""
