"""The command line: arguments, files and messages, one module a command."""
