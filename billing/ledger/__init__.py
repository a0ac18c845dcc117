"""Double entry: facts are appended, balances are projections of them."""
