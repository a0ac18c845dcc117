"""Who changed what: appended, chained by hash, never edited."""
