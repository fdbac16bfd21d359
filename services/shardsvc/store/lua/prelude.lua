-- Shared by all scripts of the queue. All keys of a job share one hash tag, so a script runs on one slot.
--   KEYS  1 run (hash)       gen, life, total, batch, shard, ttl_ms, next, queued, granted, requeues, expirations;
--                            more: the line goes on; size:<worker> its shards' batches;
--                            twin:<epoch> the lease over the same positions
--         2 queue (zset)     pieces "lo hi" by lo
--         3 leases (hash)    epoch -> "lo hi progress since_ms worker"
--         4 expiry (zset)    epoch by expiry in ms
--         5 workers (hash)   worker -> number of leases
--         6 recent (zset)    pieces trained since the last reconcile
--         7 lapsed (hash)    worker -> "lo hi progress" of its first lease that expired
--   ARGV  1 gen
-- Time is the server's. Numbers go through int(): Lua would write large ones with an exponent. Whoever handles many
-- leases asks for all of them by one command: a call from Lua costs as much as its work on ten of them.
local RUN, QUEUE, LEASES, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local WORKERS, RECENT, LAPSED = KEYS[5], KEYS[6], KEYS[7]
local GEN = tonumber(ARGV[1])
local call = redis.call
-- Another value than the queue was opened under: the server restarted, and may have forgotten its last moments.
local LIFE = string.match(call('INFO', 'server'), 'run_id:(%w+)')

local function int(x)
  return string.format('%d', x)
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- Answers are one JSON text: clients read nested replies piece by piece, and slowly. With `digits`, a list of numbers
-- that are text already.
local function json(value)
  local kind = type(value)
  if kind == 'number' then return int(value) end
  if kind == 'string' then return cjson.encode(value) end
  if value.digits then return '[' .. table.concat(value, ',') .. ']' end
  local parts = {}
  for i = 1, #value do parts[i] = json(value[i]) end
  return '[' .. table.concat(parts, ',') .. ']'
end

-- nil when the queue is this generation's and was opened in this life of the server; and more fields of the run, from
-- the third on.
local function refusal(...)
  local have = call('HMGET', RUN, 'gen', 'life', ...)
  if not have[1] then return 'reopen', have end
  local gen = tonumber(have[1])
  if gen > GEN then return 'stale', have end
  if gen < GEN or have[2] ~= LIFE then return 'reopen', have end
  return nil, have
end

local function parse(text)
  local lo, hi, progress, since, worker = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
  return {lo = tonumber(lo), hi = tonumber(hi), progress = tonumber(progress), since = tonumber(since),
          worker = worker}
end

local function text_of(lease)
  return int(lease.lo) .. ' ' .. int(lease.hi) .. ' ' .. int(lease.progress) .. ' ' .. int(lease.since)
    .. ' ' .. lease.worker
end

local function piece_of(text)
  local lo, hi = string.match(text, '^(%d+) (%d+)$')
  return tonumber(lo), tonumber(hi)
end

local function enqueue(lo, hi)
  call('ZADD', QUEUE, int(lo), int(lo) .. ' ' .. int(hi))
  call('HINCRBY', RUN, 'queued', int(hi - lo))
end

-- The line ends at `total` now, for good when it is closed. Safe to repeat, and in any order: a line only grows.
local function grow(total, closed)
  local before = tonumber(call('HGET', RUN, 'total'))
  if total > before then
    call('HSET', RUN, 'total', int(total))
    local tail, lo = call('ZRANGE', QUEUE, -1, -1)[1], before
    if tail then
      local first, last = piece_of(tail)
      if last == before then                                   -- one piece: shards do not end where it grew
        call('ZREM', QUEUE, tail)
        call('HINCRBY', RUN, 'queued', int(first - last))
        lo = first
      end
    end
    enqueue(lo, total)
  end
  if closed then call('HDEL', RUN, 'more') end
end

-- Runs a command over a flat list of arguments, in portions that fit Lua's stack.
local function portions(command, key, list, width)
  local step = 1000 * width
  for i = 1, #list, step do call(command, key, unpack(list, i, math.min(i + step - 1, #list))) end
end

-- At most 100,000 pieces are remembered: a forgotten one costs a lease, after the next reconcile. Those that follow each
-- other are one.
local function remember(pieces)
  local list, lo, hi = {}, nil, nil
  local function add()
    if lo and lo < hi then
      list[#list + 1] = int(lo)
      list[#list + 1] = int(lo) .. ' ' .. int(hi)
    end
  end
  for _, piece in ipairs(pieces) do
    if piece[1] ~= hi then
      add()
      lo = piece[1]
    end
    hi = piece[2]
  end
  add()
  if #list == 0 then return end
  portions('ZADD', RECENT, list, 2)
  local excess = call('ZCARD', RECENT) - 100000
  if excess > 0 then call('ZREMRANGEBYRANK', RECENT, 0, excess - 1) end
end

-- What a worker holds, each lease with its epoch, in the order in which it works on them: that of their epochs.
local function leases_of(worker)
  local mine = {}
  if call('HEXISTS', WORKERS, worker) == 0 then return mine end
  local all = call('HGETALL', LEASES)
  for i = 1, #all, 2 do
    local lease = parse(all[i + 1])
    if lease.worker == worker then
      lease.epoch = all[i]
      mine[#mine + 1] = lease
    end
  end
  table.sort(mine, function(a, b) return tonumber(a.epoch) < tonumber(b.epoch) end)
  return mine
end

local function put(epoch, lease)
  call('HSET', LEASES, epoch, text_of(lease))
end

-- The answers of a command that reads fields of a hash, in portions that fit Lua's stack; false where there is none.
local function fields_of(key, names)
  local found = {}
  for i = 1, #names, 1000 do
    for k, value in ipairs(call('HMGET', key, unpack(names, i, math.min(i + 999, #names)))) do found[i + k - 1] = value end
  end
  return found
end

-- Parts leases from those over the same positions: the other one's epoch by epoch, where there was one.
local function untwinned(leases)
  local names, others = {}, {}
  for i, lease in ipairs(leases) do names[i] = 'twin:' .. lease.epoch end
  for i, other in ipairs(fields_of(RUN, names)) do
    if other and not others[other] then                        -- of two that end together one has been parted already
      others[leases[i].epoch] = other
      call('HDEL', RUN, names[i], 'twin:' .. other)
    end
  end
  return others
end

-- Ends leases (each with its epoch), whatever becomes of their positions.
local function drop(leases)
  local epochs, counts = {}, {}
  for _, lease in ipairs(leases) do
    epochs[#epochs + 1] = lease.epoch
    counts[lease.worker] = (counts[lease.worker] or 0) + 1
  end
  portions('HDEL', LEASES, epochs, 1)
  portions('ZREM', EXPIRY, epochs, 1)
  for worker, count in pairs(counts) do
    if call('HINCRBY', WORKERS, worker, -count) <= 0 then call('HDEL', WORKERS, worker) end
  end
end

-- Ends leases: what is trained is remembered, the rest is queued and told, unless another has it too.
local function give_back(leases, told)
  drop(leases)
  local trained, list, positions, before = {}, {}, 0, #told
  local others = untwinned(leases)
  for _, lease in ipairs(leases) do
    trained[#trained + 1] = {lease.lo, lease.progress}
    if not others[lease.epoch] and lease.progress < lease.hi then
      list[#list + 1] = int(lease.progress)
      list[#list + 1] = int(lease.progress) .. ' ' .. int(lease.hi)
      positions = positions + lease.hi - lease.progress
      told[#told + 1] = {lease.worker, tonumber(lease.epoch), lease.progress, lease.hi}
    end
  end
  remember(trained)
  if #list > 0 then
    portions('ZADD', QUEUE, list, 2)
    call('HINCRBY', RUN, 'queued', int(positions))
    call('HINCRBY', RUN, 'requeues', #told - before)
  end
end

-- A lease is over from its deadline on.
local function expire(told)
  local epochs = call('ZRANGEBYSCORE', EXPIRY, '-inf', int(now), 'LIMIT', 0, 1000)
  if #epochs == 0 then return end
  local leases = {}
  for i, text in ipairs(call('HMGET', LEASES, unpack(epochs))) do
    local lease = parse(text)
    lease.epoch = epochs[i]
    leases[i] = lease
    call('HSETNX', LAPSED, lease.worker, int(lease.lo) .. ' ' .. int(lease.hi) .. ' ' .. int(lease.progress))
  end
  call('HINCRBY', RUN, 'expirations', #leases)
  give_back(leases, told)
end
