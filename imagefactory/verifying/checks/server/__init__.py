"""Does vLLM serve, with the right answers?"""
