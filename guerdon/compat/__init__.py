"""Other systems' own spellings of what guerdon does; nothing in the core imports them."""
