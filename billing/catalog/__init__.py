"""Which further names clients may use for the models that are served."""
