-- ARGV 2 total  3 batch  4 shard  5 ttl_ms  6 first epoch  7 key prefix of generations  8 more to come (0 | 1)
--      9.. pairs to do
-- A queue that outlived a restart of the server is adopted: it may have forgotten its last moments, so it
-- holds no less than what is missing, but epochs may have been issued that it does not know.
local have = call('HMGET', RUN, 'gen', 'life', 'next')
if have[1] then
  local gen = tonumber(have[1])
  if gen > GEN then return json({'stale'}) end
  if gen == GEN then
    if have[2] == LIFE then return json({'exists'}) end
    call('HSET', RUN, 'life', LIFE, 'next', int(math.max(tonumber(have[3]), tonumber(ARGV[6]))))
    grow(tonumber(ARGV[2]), ARGV[8] ~= '1')
    return json({'adopted'})
  end
  for _, kind in ipairs({'queue', 'leases', 'expiry', 'workers', 'recent', 'lapsed'}) do
    call('UNLINK', ARGV[7] .. have[1] .. ':' .. kind)
  end
end
call('UNLINK', RUN, QUEUE, LEASES, EXPIRY, WORKERS, RECENT, LAPSED)
call('HSET', RUN, 'gen', ARGV[1], 'life', LIFE, 'total', ARGV[2], 'batch', ARGV[3], 'shard', ARGV[4],
     'ttl_ms', ARGV[5], 'next', ARGV[6], 'queued', 0, 'granted', 0, 'requeues', 0, 'expirations', 0)
if ARGV[8] == '1' then call('HSET', RUN, 'more', 1) end
for i = 9, #ARGV, 2 do enqueue(tonumber(ARGV[i]), tonumber(ARGV[i + 1])) end
return json({'opened'})
