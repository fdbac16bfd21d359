"""Where models compute: a process of its own, so that the event loop never waits for one."""
