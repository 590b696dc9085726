"""REST doors of the fleet."""
