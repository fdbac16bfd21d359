-- KEYS 8 answer to this request   ARGV 2 worker  3 shards wanted  4 request known for ms (0: not kept)  5 most held
--                                 6 only below this position (0: any)
local no = refusal()
if no then return json({no}) end
local REQUEST, worker, wanted, keep_ms = KEYS[8], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local told, granted = {}, {}
expire(told)
local settings = call('HMGET', RUN, 'ttl_ms', 'batch', 'shard', 'next', 'queued')
local ttl_ms, batch, most = tonumber(settings[1]), tonumber(settings[2]), tonumber(settings[3])
local next_epoch, queued = tonumber(settings[4]), tonumber(settings[5])

-- 1. A request repeated because its answer was lost gets those of its leases that still live.
local before = keep_ms > 0 and call('GET', REQUEST)
if before then
  for epoch in string.gmatch(before, '%d+') do
    local text = call('HGET', LEASES, epoch)
    local lease = text and parse(text)
    if lease and lease.worker == worker then
      call('ZADD', EXPIRY, int(now + ttl_ms), epoch)
      granted[#granted + 1] = {tonumber(epoch), lease.lo, lease.hi, lease.progress}
    end
  end
  if #granted > 0 then return json({'granted', ttl_ms, 0, granted, told}) end
end

-- 2. Shards from the front of the line: domain/cutting.py has the rule.
local mine = tonumber(call('HGET', WORKERS, worker) or 0)
wanted = math.min(wanted, tonumber(ARGV[5]) - mine)            -- nobody hoards: release and sweep stay short
local holders = call('HLEN', WORKERS)
if mine == 0 then holders = holders + 1 end
local least = math.max(1, math.ceil(most / 8))
local below = tonumber(ARGV[6])
local leases, expiries, epochs = {}, {}, {}
local lo, hi = nil, nil
while #granted < wanted do
  if lo and below > 0 and lo >= below then break end
  if not lo then
    if below > 0 then
      local first = call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
      if first and tonumber(first) >= below then break end
    end
    local head = call('ZPOPMIN', QUEUE)[1]
    if not head then break end
    lo, hi = piece_of(head)
  end
  local fair = math.ceil(queued / (2 * holders * batch))
  local batches = math.max(least, math.min(most, fair))
  local stop = math.min(hi, (math.floor(lo / batch) + batches) * batch)
  local epoch = int(next_epoch)
  leases[#leases + 1] = epoch
  leases[#leases + 1] = text_of({lo = lo, hi = stop, progress = lo, since = now, worker = worker})
  expiries[#expiries + 1] = int(now + ttl_ms)
  expiries[#expiries + 1] = epoch
  epochs[#epochs + 1] = epoch
  granted[#granted + 1] = {next_epoch, lo, stop, lo}
  next_epoch, queued = next_epoch + 1, queued - (stop - lo)
  if stop < hi then lo = stop else lo = nil end
end
if lo then call('ZADD', QUEUE, int(lo), int(lo) .. ' ' .. int(hi)) end
if #granted > 0 then
  call('HSET', LEASES, unpack(leases))
  call('ZADD', EXPIRY, unpack(expiries))
  call('HINCRBY', WORKERS, worker, #granted)
  call('HDEL', LAPSED, worker)
  call('HSET', RUN, 'next', int(next_epoch), 'queued', int(queued))
  call('HINCRBY', RUN, 'granted', #granted)
  if keep_ms > 0 then call('SET', REQUEST, table.concat(epochs, ' '), 'PX', int(keep_ms)) end
  return json({'granted', ttl_ms, 0, granted, told})
end

-- 3. Nothing to give: the end, or others hold the rest, or all that is queued is beyond what was asked for.
local first = call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')
if not first[1] and call('ZCARD', QUEUE) > 0 then return json({'wait', ttl_ms, 0, granted, told}) end
if not first[1] then return json({'drained', ttl_ms, 0, granted, told}) end
return json({'wait', ttl_ms, tonumber(first[2]) - now, granted, told})
