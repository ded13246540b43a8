"""Do the labels say what the image is?"""
