"""Publishes policies and records for other tools: exports, pushes to the hub, model cards, reports and live pages."""
