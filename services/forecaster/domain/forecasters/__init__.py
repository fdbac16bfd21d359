"""Forecast models that need numpy alone, and nothing but milliseconds. All answer `recmesh.plugins.forecasting`."""
