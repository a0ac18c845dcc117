"""Documents as people read them: one page of text, as PDF and as HTML."""
