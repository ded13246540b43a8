"""Is everything in the image what the lock, the patches and the base say, judged from outside?"""
