"""Pages and parts. Each parses, checks access, asks one selector or service, and renders."""
