"""Foreign text and payloads, read into typed records. A reader never guesses silently: what it cannot read is counted."""
