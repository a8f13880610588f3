"""Earlier answers of rows: files, an index by prompt and identifier, look-ups. Begin with `earlier_answers`."""
