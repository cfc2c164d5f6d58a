"""Five hundred sandboxes: every figure that README names, against a loopback Daytona and a simulated engine."""
