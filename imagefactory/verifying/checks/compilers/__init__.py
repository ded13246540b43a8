"""Can the image compile, at run time, for the GPU that it is made for?"""
