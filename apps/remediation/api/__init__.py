"""REST doors of actions."""
