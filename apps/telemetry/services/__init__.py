"""Everything that writes telemetry."""
