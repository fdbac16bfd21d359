"""Use cases of ckptcache: collect, store, commit, restore, forget."""
