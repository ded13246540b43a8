"""Tiny models whose right answers are known, one file each: do a server's kernels compute?"""
