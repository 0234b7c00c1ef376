"""The archive's files (O1): written, read back and queried. Its packages are the extra `ondot[archive]`, and are
imported where they are used."""
