"""Does the entrypoint behave as documented?"""
