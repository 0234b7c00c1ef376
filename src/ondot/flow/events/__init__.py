"""Events (S11): from a request, a hook or ondot itself to the executions that they start."""
