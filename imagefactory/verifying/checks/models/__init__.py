"""Does the image compute right in every format, with each of the tiny models?"""
