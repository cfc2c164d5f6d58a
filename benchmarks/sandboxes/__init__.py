"""Five hundred sandboxes: every figure that the README names, against a loopback Daytona and a simulated engine."""
