"""Registers the `forecast` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `forecast` environment. It runs in this process and needs no extra packages."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            sandboxless=True,
            policy="embedded-forecast",
            clustered_by="{cluster}",
            name="forecast",
            target="finqa_plugins.environments.forecast.forecast_environment:ForecastEnvironment",
            config="finqa_plugins.environments.forecast.config:ForecastConfig",
            summary="stock price forecasts and questions about them in one turn, weighted by uncertainty (--data FILE)",
        )
    ]
