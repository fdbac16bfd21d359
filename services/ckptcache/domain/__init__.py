"""Pure rules of ckptcache: values in, values out."""
