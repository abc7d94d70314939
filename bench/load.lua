-- The request that wrk repeats (wrk … -s load.lua URL -- BODY-FILE 'Name: value' …), and one line of figures at the end.

function init(args)
   local file = assert(io.open(args[1], "rb"))
   wrk.method = "POST"
   wrk.body = file:read("*a")
   file:close()
   for i = 2, #args do
      local name, value = args[i]:match("^([^:]+): (.*)$")
      wrk.headers[name] = value
   end
end

function done(summary, latency, _)
   local errors = summary.errors
   io.write(string.format(
      "figures requests=%d duration_us=%d p50_us=%d p99_us=%d connect=%d read=%d write=%d status=%d timeout=%d\n",
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
