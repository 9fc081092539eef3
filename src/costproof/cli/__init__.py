"""The command line: one file per command, each imported when it is called."""
