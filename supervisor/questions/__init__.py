"""Questions of front ends, guests and models that only the supervisor can answer, one verb each."""
