"""Pure rules of forecaster: values in, values out."""
