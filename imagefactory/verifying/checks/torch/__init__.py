"""Is torch the build that was locked, in every layer and in the finished image?"""
