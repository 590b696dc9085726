"""Pure numeric code: arguments in, values out. No Django, no clock, no store."""
