-- ARGV 2 total  3 closed (0 | 1). Safe to repeat, and in any order: a line only grows.
local no = refusal()
if no then return json({no}) end
local before, total = tonumber(call('HGET', RUN, 'total')), tonumber(ARGV[2])
if total > before then
  call('HSET', RUN, 'total', int(total))
  local tail, lo = call('ZRANGE', QUEUE, -1, -1)[1], before
  if tail then
    local first, last = piece_of(tail)
    if last == before then                                     -- one piece: shards do not end where it grew
      call('ZREM', QUEUE, tail)
      call('HINCRBY', RUN, 'queued', int(first - last))
      lo = first
    end
  end
  enqueue(lo, total)
end
if ARGV[3] == '1' then call('HDEL', RUN, 'more') end
return json({'granted', tonumber(call('HGET', RUN, 'queued'))})
