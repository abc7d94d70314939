"""HTTP on a lane: connections, heads, bodies and answers, in one thread that never waits."""
