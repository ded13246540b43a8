"""Does the image compute right on a GPU?"""
