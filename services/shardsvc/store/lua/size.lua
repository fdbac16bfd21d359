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
local told, whole = {}, {}
for _, lease in ipairs(leases_of(worker)) do
  local left = math.ceil((lease.hi - lease.progress) / batch)
  if left > 0 and keep == 0 then                  -- those before it are all that it keeps
    whole[#whole + 1] = lease
  elseif left > keep then
    local stop = lease.lo + (math.floor((lease.progress - lease.lo) / batch) + keep) * batch
    told[#told + 1] = {worker, tonumber(lease.epoch), stop, lease.hi}
    enqueue(stop, lease.hi)
    call('HINCRBY', RUN, 'requeues', 1)
    lease.hi = stop
    put(lease.epoch, lease)
    keep = 0
  else
    keep = keep - left
  end
end
give_back(whole, told)
return json({'granted', told})
