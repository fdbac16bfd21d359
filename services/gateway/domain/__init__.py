"""Pure rules of gateway: values in, values out."""
