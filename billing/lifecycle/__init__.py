"""Tenants that are suspended, resumed, reminded of what they owe, and erased."""
