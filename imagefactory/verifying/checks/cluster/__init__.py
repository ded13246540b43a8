"""Can several machines serve one model with this image?"""
