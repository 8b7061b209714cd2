"""Tables of rows beside a peer, and the drawn pictures with their questions."""
