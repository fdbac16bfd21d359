-- ARGV 2 with leases (0 | 1). Ends what is over, then tells the queue as it is.
local no = refusal()
if no then return json({no}) end
local told = {}
expire(told)
local run = call('HMGET', RUN, 'total', 'queued', 'granted', 'requeues', 'expirations')
local numbers = {}
for i = 1, #run do numbers[i] = tonumber(run[i]) end
numbers[#numbers + 1] = call('ZCARD', QUEUE)
local first = call('ZRANGE', QUEUE, 0, 0)[1]
numbers[#numbers + 1] = first and tonumber(string.match(first, '%d+')) or -1
local leases = {}
if ARGV[2] == '1' then
  local all = call('HGETALL', LEASES)
  for i = 1, #all, 2 do
    local lease = parse(all[i + 1])
    local twin = tonumber(call('HGET', RUN, 'twin:' .. all[i]))
    if not twin or twin > tonumber(all[i]) then                -- of two over the same positions the first one counts
      leases[#leases + 1] = {tonumber(all[i]), lease.lo, lease.hi, lease.progress, now - lease.since, lease.worker}
    end
  end
end
return json({'granted', told, numbers, leases})
