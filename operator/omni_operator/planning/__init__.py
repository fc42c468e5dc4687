"""Pure planning: what is declared, and what is observed, in; what should be, out. No clock, no network, no files."""
