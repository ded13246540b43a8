"""Adapters to the machine: the engine, programs, servers, files, the terminal."""
