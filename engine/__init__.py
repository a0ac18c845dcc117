"""The prefill/decode cluster and the prefix store. No SQL, no web framework, no money."""
