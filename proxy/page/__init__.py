"""The page that the proxy serves at /: its files, and the JSON that it shows."""
