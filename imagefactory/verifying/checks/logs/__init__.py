"""Does the server's log say what it has to?"""
