"""Is every installed file in the image, and nothing unused?"""
