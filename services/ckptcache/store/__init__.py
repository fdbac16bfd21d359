"""What ckptcache keeps: files on storage, copies in memory (blocking calls), the catalogue (awaited)."""
