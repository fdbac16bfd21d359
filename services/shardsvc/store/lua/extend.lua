-- ARGV 2 total  3 closed (0 | 1)
local no = refusal()
if no then return json({no}) end
grow(tonumber(ARGV[2]), ARGV[3] == '1')
return json({'granted', tonumber(call('HGET', RUN, 'queued'))})
