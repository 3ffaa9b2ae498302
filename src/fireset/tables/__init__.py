"""Tables: reading files, encoding columns as numbers, holding rows out, and mapping rows to the unit sphere."""
