-- ARGV 2 worker  3 epochs that are complete, by spaces  4.. epoch, trained to, where the worker thinks it ends (0: not told)
-- A lease whose time is over but that nobody took yet goes on: nothing is lost by it.
local no = refusal()
if no then return json({no}) end
local worker = ARGV[2]
local ttl_ms = tonumber(call('HGET', RUN, 'ttl_ms'))
local lost, cuts = {}, {}

local function held(text)
  local lease = text and parse(text)
  return lease and lease.worker == worker and lease
end

-- 1. Those that go on.
local expiry = int(now + ttl_ms)
for i = 4, #ARGV, 3 do
  local epoch = ARGV[i]
  local lease = held(call('HGET', LEASES, epoch))
  if not lease then
    lost[#lost + 1] = tonumber(epoch)
  else
    local progress = math.max(lease.progress, math.min(tonumber(ARGV[i + 1]), lease.hi))
    if progress > lease.progress then
      lease.progress = progress
      put(epoch, lease)
    end
    if tonumber(ARGV[i + 2]) > lease.hi then cuts[#cuts + 1] = {tonumber(epoch), lease.hi} end
    call('ZADD', EXPIRY, expiry, epoch)
  end
end

-- 2. Those that are complete; whoever held the same positions is done with them, too.
local epochs, complete, trained, ended = {}, {}, {}, {}
for epoch in string.gmatch(ARGV[3], '%d+') do
  if not ended[epoch] then epochs[#epochs + 1] = epoch end
  ended[epoch] = true
end
for i, text in ipairs(fields_of(LEASES, epochs)) do
  local lease = held(text)
  if lease then
    lease.epoch = epochs[i]
    complete[#complete + 1] = lease
    trained[#trained + 1] = {lease.lo, lease.hi}
  else
    lost[#lost + 1] = tonumber(epochs[i])
  end
end
for _, other in pairs(untwinned(complete)) do
  if not ended[other] then
    local twin = parse(call('HGET', LEASES, other))
    twin.epoch = other
    complete[#complete + 1] = twin
    trained[#trained + 1] = {twin.lo, twin.progress}
  end
end
drop(complete)
remember(trained)
return json({'granted', lost, cuts})
