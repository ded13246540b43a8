"""Do vLLM's compiled extensions load?"""
