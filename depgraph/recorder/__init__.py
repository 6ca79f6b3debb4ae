"""Recording on the GPU: the native part, its build, and running a program under it."""
