"""Define the command line, with one file for related commands, imported when one of them is called."""
