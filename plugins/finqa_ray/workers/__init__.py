"""Rollout workers: processes on the nodes that play episodes, and the controller's side of them."""
