"""The libraries that our transports stand on, used alone and as directly as they can be.

Each moves ranges (offset there, offset here, bytes) of one region into the same region here. What a
library lets one prepare before the first transfer is prepared; nothing is checked, leased or told.
"""
