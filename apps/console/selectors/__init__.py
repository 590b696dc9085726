"""What pages show, put together from the rooms below. No rule is made here."""
