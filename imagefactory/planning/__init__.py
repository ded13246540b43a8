"""Planning: everything that decides an image's content, put together and hashed."""
