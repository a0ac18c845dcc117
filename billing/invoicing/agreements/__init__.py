"""What is agreed with a tenant beside prices: terms, coupons, and who it is."""
