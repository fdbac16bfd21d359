-- ARGV 2 worker  3 batches of its shards (0: as the run's again)
-- What it holds beyond one such shard, in the order in which it works on its leases, is queued (cutting.kept_end).
local no = refusal()
if no then return json({no}) end
local worker, keep = ARGV[2], tonumber(ARGV[3])
if keep == 0 then
  call('HDEL', RUN, 'size:' .. worker)
  return json({'granted', {}})
end
call('HSET', RUN, 'size:' .. worker, int(keep))
local batch = tonumber(call('HGET', RUN, 'batch'))
local told, mine, whole = {}, {}, {}
if call('HEXISTS', WORKERS, worker) == 1 then
  local all = call('HGETALL', LEASES)
  for i = 1, #all, 2 do
    local lease = parse(all[i + 1])
    if lease.worker == worker then
      lease.epoch = all[i]
      mine[#mine + 1] = lease
    end
  end
end
table.sort(mine, function(a, b) return tonumber(a.epoch) < tonumber(b.epoch) end)
for _, lease in ipairs(mine) do
  local left = math.ceil((lease.hi - lease.progress) / batch)
  if lease.progress < lease.hi and keep == 0 then
    whole[#whole + 1] = lease
  elseif left > keep then
    local stop = math.min(lease.hi, lease.lo + (math.floor((lease.progress - lease.lo) / batch) + keep) * batch)
    if stop < lease.hi then
      told[#told + 1] = {worker, tonumber(lease.epoch), stop, lease.hi}
      enqueue(stop, lease.hi)
      call('HINCRBY', RUN, 'requeues', 1)
      lease.hi = stop
      put(lease.epoch, lease)
    end
    keep = 0
  else
    keep = keep - left
  end
end
give_back(whole, told)
return json({'granted', told})
