"""State that outlives its code: threads that an older version of an application has written, read by a newer one."""
