"""Is exactly what was locked installed?"""
