"""Are the patches in the image, and do they work?"""
