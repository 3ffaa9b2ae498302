"""What the commands of the command line do, one module a group; ``fireset.cli`` only reads arguments and prints."""
