"""REST doors of telemetry."""
