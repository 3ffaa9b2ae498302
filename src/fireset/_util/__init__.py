"""What every room needs and none owns: errors, argument checks, files, threads, rounding, memory."""
