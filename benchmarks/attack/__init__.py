"""What one client does to the others: requests that cost more than they should."""
