"""What tests share: jobs, processes, command lines, data. Imported as `tests.support.NAME`."""
