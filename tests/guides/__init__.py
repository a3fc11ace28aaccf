"""Guides with libraries of others (``make test-guides``): the scripts of the pages, with the real libraries
from an environment of their own.
"""
