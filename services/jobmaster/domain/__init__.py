"""Pure rules of jobmaster: values in, values out."""
