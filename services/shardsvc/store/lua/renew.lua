-- ARGV 2 worker  3.. epoch, trained to, complete (0 | 1), where the worker thinks it ends (0: not told)
-- A lease whose time is over but that nobody took yet goes on: nothing is lost by it.
local no = refusal()
if no then return json({no}) end
local worker = ARGV[2]
local ttl_ms = tonumber(call('HGET', RUN, 'ttl_ms'))
local lost, complete, trained, ended, cuts = {}, {}, {}, {}, {}
for i = 3, #ARGV, 4 do
  local epoch = ARGV[i]
  local text = call('HGET', LEASES, epoch)
  local lease = text and parse(text)
  if not lease or lease.worker ~= worker then
    lost[#lost + 1] = tonumber(epoch)
  elseif ARGV[i + 2] == '1' then
    if not ended[epoch] then
      ended[epoch] = true
      lease.epoch = epoch
      complete[#complete + 1] = lease
      trained[#trained + 1] = {lease.lo, lease.hi}
      local other = untwin(epoch)
      if other and not ended[other] then                       -- whoever held the same is done with it, too
        ended[other] = true
        local twin = parse(call('HGET', LEASES, other))
        twin.epoch = other
        complete[#complete + 1] = twin
        trained[#trained + 1] = {twin.lo, twin.progress}
      end
    end
  else
    local progress = math.max(lease.progress, math.min(tonumber(ARGV[i + 1]), lease.hi))
    if progress > lease.progress then
      lease.progress = progress
      put(epoch, lease)
    end
    if tonumber(ARGV[i + 3]) > lease.hi then cuts[#cuts + 1] = {tonumber(epoch), lease.hi} end
    call('ZADD', EXPIRY, int(now + ttl_ms), epoch)
  end
end
drop(complete)
remember(trained)
return json({'granted', lost, cuts})
