"""The pages of the console: one module for each kind of page, and one for what people do on them."""
