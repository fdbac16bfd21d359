-- KEYS 8 answer to this request   ARGV 2 worker  3 shards wanted  4 request known for ms (0: not kept)  5 most held
--                                 6 only below this position (0: any)
local no, run = refusal('ttl_ms', 'batch', 'shard', 'next', 'queued', 'granted', 'size:' .. ARGV[2])
if no then return json({no}) end
local REQUEST, worker, wanted, keep_ms = KEYS[8], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local told, granted = {}, {digits = true}
local function give(epoch, lo, hi, progress)
  granted[#granted + 1] = epoch .. ',' .. lo .. ',' .. hi .. ',' .. progress
end
expire(told)
local ttl_ms, batch, most = tonumber(run[3]), tonumber(run[4]), tonumber(run[5])
local next_epoch, queued, handed_out = tonumber(run[6]), tonumber(run[7]), tonumber(run[8] or 0)
if #told > 0 then queued = tonumber(call('HGET', RUN, 'queued')) end

-- 1. A request repeated because its answer was lost gets those of its leases that still live.
local before = keep_ms > 0 and call('GET', REQUEST)
if before then
  for epoch in string.gmatch(before, '%d+') do
    local text = call('HGET', LEASES, epoch)
    local lease = text and parse(text)
    if lease and lease.worker == worker then
      call('ZADD', EXPIRY, int(now + ttl_ms), epoch)
      give(epoch, int(lease.lo), int(lease.hi), int(lease.progress))
    end
  end
  if #granted > 0 then return json({'granted', ttl_ms, 0, granted, told}) end
end

-- 2. Shards from the front of the line: domain/cutting.py has the rule.
local mine = tonumber(call('HGET', WORKERS, worker) or 0)
wanted = math.min(wanted, tonumber(ARGV[5]) - mine)            -- nobody hoards: release and sweep stay short
local holders = call('HLEN', WORKERS)
if mine == 0 then holders = holders + 1 end
local below = tonumber(ARGV[6])
local own = below == 0 and run[9] and tonumber(run[9])          -- what all wait for is anyone's
if own then                                                    -- a slow worker holds no more than one of its shards
  most = math.min(most, own)
  local left = most
  if mine > 0 then
    for _, text in ipairs(call('HVALS', LEASES)) do
      local lease = parse(text)
      if lease.worker == worker then left = left - math.ceil((lease.hi - lease.progress) / batch) end
    end
  end
  wanted = left * 2 >= most and math.min(wanted, 1) or 0
  most = math.max(1, left)
end
local least = math.max(1, math.ceil(most / 8))
local leases, expiries, epochs = {}, {}, {}
local lo, hi = nil, nil
local expiry, rest = int(now + ttl_ms), ' ' .. int(now) .. ' ' .. worker
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
  local epoch, from, to, n = int(next_epoch), int(lo), int(stop), #leases
  leases[n + 1], leases[n + 2] = epoch, from .. ' ' .. to .. ' ' .. from .. rest             -- as text_of
  expiries[n + 1], expiries[n + 2] = expiry, epoch
  epochs[#epochs + 1] = epoch
  give(epoch, from, to, from)
  next_epoch, queued = next_epoch + 1, queued - (stop - lo)
  if stop < hi then lo = stop else lo = nil end
end
if lo then call('ZADD', QUEUE, int(lo), int(lo) .. ' ' .. int(hi)) end

-- 3. Nothing queued: whoever holds nothing takes part of a lease that is slow to end (cutting.stolen_from).
if #granted == 0 and wanted > 0 and mine == 0 and not own and below == 0 then
  local best, epoch = nil, nil
  local all = call('HGETALL', LEASES)
  for i = 1, #all, 2 do
    local lease = parse(all[i + 1])
    local late = lease.worker ~= worker and lease.progress < lease.hi
      and (now - lease.since >= ttl_ms / 3 or call('HEXISTS', RUN, 'size:' .. lease.worker) == 1)
      and call('HEXISTS', RUN, 'twin:' .. all[i]) == 0
    local left = lease.hi - lease.progress
    if late and (not best or left > best.hi - best.progress or (left == best.hi - best.progress and lease.lo < best.lo)) then
      best, epoch = lease, all[i]
    end
  end
  if best then
    local first = math.floor((best.progress - best.lo) / batch)
    local batches = math.ceil((best.hi - best.lo) / batch) - first
    local from, new, stop = best.progress, int(next_epoch), best.hi
    if batches < 2 then
      call('HSET', RUN, 'twin:' .. epoch, new, 'twin:' .. new, epoch)
    else
      from = best.lo + (first + math.ceil(batches / 2)) * batch
      best.hi = from
      put(epoch, best)
    end
    leases = {new, text_of({lo = from, hi = stop, progress = from, since = now, worker = worker})}
    expiries, epochs = {expiry, new}, {new}
    give(new, int(from), int(stop), int(from))
    next_epoch = next_epoch + 1
  end
end
if #granted > 0 then
  call('HSET', LEASES, unpack(leases))
  call('ZADD', EXPIRY, unpack(expiries))
  call('HINCRBY', WORKERS, worker, #granted)
  call('HDEL', LAPSED, worker)
  call('HSET', RUN, 'next', int(next_epoch), 'queued', int(queued), 'granted', int(handed_out + #granted))
  if keep_ms > 0 then call('SET', REQUEST, table.concat(epochs, ' '), 'PX', int(keep_ms)) end
  return json({'granted', ttl_ms, 0, granted, told})
end

-- 4. Nothing to give: the end, or others hold the rest, or all that is queued is beyond what was asked for.
local first = call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')
local more = call('HEXISTS', RUN, 'more') == 1
if not first[1] and queued == 0 and not more then return json({'drained', ttl_ms, 0, granted, told}) end
local wait_ms = first[2] and tonumber(first[2]) - now or 0
if more and queued == 0 then wait_ms = math.max(200, math.min(wait_ms, 500)) end
return json({'wait', ttl_ms, own and math.min(wait_ms, 200) or wait_ms, granted, told})
