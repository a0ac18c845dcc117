"""The price book: rates by model, currency and instant."""
