"""The data plane: HTTP edge, admission, pump, settlement. No SQL, no torch."""
