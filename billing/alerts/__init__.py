"""What the books say that tenants are to know: looked for by jobs, never on a request's way."""
