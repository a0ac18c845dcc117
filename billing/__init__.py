"""System of record: the only package that speaks SQL, and the only one that knows what anything costs."""
