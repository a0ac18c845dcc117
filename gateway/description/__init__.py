"""What the house says of its API: documents beside this file, put together as OpenAPI and as a page."""
