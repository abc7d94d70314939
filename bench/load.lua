-- The requests of wrk (wrk … -s load.lua URL -- BODY-FILE distinct|equal 'Name: value' …), and one line of figures at the end.
--
-- Distinct requests have a trace each, and an id each where the body has a place for one: sixteen zeros in quotes, behind
-- "id". They are made before the load and sent in turns; there are so many that no server remembers them all.

local PLACE = '"id": "0000000000000000"'
local MOST, MOST_BYTES = 4096, 64 * 1024 * 1024
local requests, position = {}, 0

function init(args)
   local file = assert(io.open(args[1], "rb"))
   local body = file:read("*a")
   file:close()
   local headers = {}
   for i = 3, #args do
      local name, value = args[i]:match("^([^:]+): (.*)$")
      headers[name] = value
   end
   local num_distinct = args[2] == "equal" and 1 or math.max(8, math.min(MOST, math.floor(MOST_BYTES / #body)))
   local first, last = body:sub(1, 4096):find(PLACE, 1, true)
   for i = 1, num_distinct do
      local text = body
      if args[2] ~= "equal" then
         headers["traceparent"] = string.format("00-%032x-%016x-01", i, i)
         if first then
            text = body:sub(1, last - 17) .. string.format("%016x", i) .. body:sub(last)
         end
      end
      requests[i] = wrk.format("POST", nil, headers, text)
   end
end

function request()
   position = position % #requests + 1
   return requests[position]
end

function done(summary, latency, _)
   local errors = summary.errors
   io.write(string.format(
      "figures requests=%d duration_us=%d p50_us=%d p99_us=%d connect=%d read=%d write=%d status=%d timeout=%d\n",
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
