"""Jobs that run as they are, and the scripts that make their models and data. Part of a checkout, not of the wheel."""
