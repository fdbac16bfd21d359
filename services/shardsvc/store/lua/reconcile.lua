-- ARGV 2.. pairs done, ascending and disjoint.
-- orphans = [0, total) \ done \ queued \ leased \ recent. Recent pieces were reported as trained after the
-- last reconcile, so the cut of this snapshot may be older than they are: they get until the next one.
-- With nothing queued or leased there is no such doubt to keep a job from its end: all that lacks is queued.
local no = refusal()
if no then return json({no}) end
local told = {}
expire(told)
local total = tonumber(call('HGET', RUN, 'total'))
local done, cover, queue = {}, {}, {}
for i = 2, #ARGV, 2 do
  done[#done + 1] = {tonumber(ARGV[i]), tonumber(ARGV[i + 1])}
  cover[#cover + 1] = done[#done]
end
for _, text in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
  local lo, hi = piece_of(text)
  queue[#queue + 1] = {lo, hi}
  cover[#cover + 1] = {lo, hi}
end
local held = call('HVALS', LEASES)
for _, text in ipairs(held) do
  local lease = parse(text)
  cover[#cover + 1] = {lease.lo, lease.hi}
end
if #queue > 0 or #held > 0 then
  for _, text in ipairs(call('ZRANGE', RECENT, 0, -1)) do
    local lo, hi = piece_of(text)
    cover[#cover + 1] = {lo, hi}
  end
end
call('DEL', RECENT)

-- 1. Gaps of the cover are orphans.
local function ascending(a, b) return a[1] < b[1] end
table.sort(cover, ascending)
local orphans, at = {}, 0
for _, piece in ipairs(cover) do
  if piece[1] > at then orphans[#orphans + 1] = {at, math.min(piece[1], total)} end
  if piece[2] > at then at = piece[2] end
  if at >= total then break end
end
if at < total then orphans[#orphans + 1] = {at, total} end

-- 2. Queue := (queue \ done) + orphans, joined where pieces touch.
local kept, k = {}, 1
for _, piece in ipairs(queue) do
  local lo, hi = piece[1], piece[2]
  while k <= #done and done[k][2] <= lo do k = k + 1 end
  local j = k
  while j <= #done and done[j][1] < hi do
    if lo < done[j][1] then kept[#kept + 1] = {lo, done[j][1]} end
    lo = math.max(lo, done[j][2])
    j = j + 1
  end
  if lo < hi then kept[#kept + 1] = {lo, hi} end
end
for _, piece in ipairs(orphans) do kept[#kept + 1] = piece end
table.sort(kept, ascending)
call('DEL', QUEUE)
call('HSET', RUN, 'queued', 0)
local lo, hi = nil, nil
for _, piece in ipairs(kept) do
  if lo and piece[1] == hi then
    hi = piece[2]
  else
    if lo then enqueue(lo, hi) end
    lo, hi = piece[1], piece[2]
  end
end
if lo then enqueue(lo, hi) end
if #orphans > 0 then call('HINCRBY', RUN, 'requeues', #orphans) end
return json({'granted', told, orphans})
