"""One module for each noun of the HTTP API."""
