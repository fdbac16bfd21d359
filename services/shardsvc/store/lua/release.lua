-- KEYS 8 deaths (hash: position -> count, over the job's life)  9 answer kept for a repeated call
-- ARGV 2 worker  3 crashed (0 | 1)  4 answer known for ms
local no = refusal()
if no then return json({no}) end
local DEATHS, ANSWER, worker, crashed = KEYS[8], KEYS[9], ARGV[2], ARGV[3] == '1'
local batch = tonumber(call('HGET', RUN, 'batch'))
local told, mine = {}, leases_of(worker)
give_back(mine, told)
if not crashed then
  call('HDEL', LAPSED, worker)
  return json({'granted', told, {}, 0})
end

-- Only the batch of the lease that it worked on first can have been the killer.
local lapsed = call('HGET', LAPSED, worker)
if lapsed then
  local lo, hi, progress = string.match(lapsed, '^(%d+) (%d+) (%d+)$')
  table.insert(mine, 1, {lo = tonumber(lo), hi = tonumber(hi), progress = tonumber(progress)})
  call('HDEL', LAPSED, worker)
end
local suspects = {}
for _, lease in ipairs(mine) do
  if lease.progress < lease.hi then
    local batches = math.floor((lease.progress - lease.lo) / batch) + 1
    suspects[#suspects + 1] = {lease.progress, math.min(lease.hi, lease.lo + batches * batch)}
  end
end
if #suspects == 0 then
  local kept = call('GET', ANSWER)
  if not kept then return json({'granted', told, {}, 0}) end
  local numbers = {}
  for number in string.gmatch(kept, '%d+') do numbers[#numbers + 1] = tonumber(number) end
  for i = 2, #numbers, 2 do suspects[#suspects + 1] = {numbers[i], numbers[i + 1]} end
  return json({'granted', told, suspects, numbers[1]})
end
local deaths = call('HINCRBY', DEATHS, int(suspects[1][1]), 1)
local kept = {int(deaths)}
for _, pair in ipairs(suspects) do
  kept[#kept + 1] = int(pair[1])
  kept[#kept + 1] = int(pair[2])
end
call('SET', ANSWER, table.concat(kept, ' '), 'PX', ARGV[4])
return json({'granted', told, suspects, deaths})
