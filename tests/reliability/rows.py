"""The rows: every line of the bar, and the function that measures it. Their modules are imported by their processes."""

from tests.reliability.row import Kind, Line, Row

FIGURE = Kind.FIGURE

ROWS = (
    Row(
        "storm", "storm:run", 1300, 120,
        {
            "answers": Line(
                "KILL and STOP of workers, batchers, HTTP and gRPC lanes, the road, arbiters, zygotes and the poller, "
                "under load",
                "0 unanswered, 0 wrong; fail may only what was executing, or lay on a front end that died",
            ),
            "left": Line("what is left of the storm", "0 requests, blocks, bytes, descriptors, processes"),
            "number": Line(
                "size of the storm", "1,000 KILL, 1,000 STOP, 500,000 requests; short: each kind once", FIGURE
            ),
        },
    ),
    Row(
        "death", "deaths:run", 240, 40,
        {
            "answered": Line("a worker dies: its clients have an answer", "p99 ≤ 250 ms", FIGURE),
            "replaced": Line("a worker dies: another runs the model's code", "p99 ≤ 1 s", FIGURE),
            "told": Line("a worker dies: the answer", "500 with instance, pid and signal, each time"),
            "breaker": Line("a model that dies each time it is loaded", "no more starts after 5 deaths within 60 s"),
        },
    ),
    Row(
        "hang", "hangs:run", 180, 40,
        {
            "answered": Line(
                "a model hangs (with the GIL, without it, stopped): its client has an answer, another worker serves",
                "≤ the limit + 1 s",
                FIGURE,
            ),
            "told": Line(
                "a model hangs: the answer, and the next one",
                "500 that names the limit (or right, where it had not begun), then 200",
            ),
        },
    ),
    Row(
        "front-end", "front_ends:run", 180, 40,
        {
            "others": Line("a front end is killed", "only its own connections fail; no connection is refused"),
            "memory": Line("a front end is killed: its memory and its results' are back", "≤ 1 s", FIGURE),
        },
    ),
    Row(
        "supervisor", "supervisor:run", 180, 40,
        {
            "gone": Line("the supervisor is killed: every child is gone, stopped ones, too", "≤ 2 s", FIGURE),
            "left": Line("the supervisor is killed: what is left", "no process, nothing in /dev/shm"),
            "again": Line("the supervisor is killed: the next server serves an identity model", "≤ 3 s", FIGURE),
        },
    ),
    Row(
        "malformed", "malformed:run", 300, 40,
        {
            "status": Line("malformed requests, each again and again", "the exact status, each time"),
            "growth": Line("malformed requests: growth of all front ends", "≤ 1 MiB per 100 of any one", FIGURE),
        },
    ),
    Row(
        "parsers", "parsers_row:run", 700, 60,
        {
            "errors": Line(
                "mutated inputs of each parser, in its process: "
                "HTTP head, chunks, JSON, binary tensors, forms, config.pbtxt, config.properties, archives, HTTP/2, "
                "protobuf, records in rings, messages of clients",
                "no error but the parser's own, nothing read differently by gunicorn or protobuf",
            ),
            "number": Line("mutated inputs, in all", "1,000,000; short: some thousands", FIGURE),
        },
    ),
    Row(
        "sockets", "sockets:run", 300, 40,
        {
            "answers": Line(
                "mutated requests over HTTP and gRPC connections",
                "no death, no 5xx but a model's, no answer without a sentence, none later than 5 s",
            ),
        },
    ),
    Row(
        "overload", "overload:run", 200, 75,
        {
            "goodput": Line(
                "0.9, 2, 3 and 10 times the capacity, from clients that give up after 0.5 s and clients that wait",
                "goodput ≥ 95 % of the peak, ≥ 85 % at 10 × (of what is asked at 0.9 ×)",
                FIGURE,
            ),
            "accepted": Line("overload: answers to clients that give up", "p99 ≤ 0.5 s", FIGURE),
            "refused": Line("overload: refusals to clients that wait", "p99 ≤ 50 ms", FIGURE),
            "live": Line("overload: /v2/health/live", "p99.9 ≤ 100 ms", FIGURE),
            "broken": Line("overload: each request", "an answer or a refusal with a status; no connection is cut"),
        },
    ),
    Row(
        "slow-loris", "slow_loris:run", 150, 75,
        {
            "others": Line("1,000 connections that stand still: other clients", "p99 ≤ 1.5 × that without", FIGURE),
            "answers": Line("1,000 connections that stand still: other clients' answers", "each right"),
            "gone": Line(
                "1,000 connections that stand still are closed, with `--upload-timeout-secs=30` (by default 60)",
                "heads ≤ 10 s, bodies ≤ 30 s, ± 5 s",
                FIGURE,
            ),
        },
    ),
    Row(
        "held-memory", "held_memory:run", 180, 60,
        {
            "each": Line(
                "memory of a connection that stays in the middle of something small", "≤ 32 KiB", FIGURE
            ),
            "all": Line(
                "memory of all unfinished bodies and messages, with `--max-upload-mib=64` and slabs of 64 MiB",
                "≤ 208 MiB: 16 of a lane, those 64, half of each slab, and 64 for gRPC",
                FIGURE,
            ),
            "again": Line("memory that the second such attack leaves", "≤ 8 MiB", FIGURE),
        },
    ),
    Row(
        "soak", "soak:run", 1900, 60,
        {
            "answers": Line("a soak at 70 %, with exceptions, deaths and clients that leave", "each answer right"),
            "left": Line("the soak: descriptors, children and shared bytes at rest", "as after the warm-up"),
            "slope": Line("the soak: growth at rest of the process that grows most", "≤ 1 MiB per 10 minutes", FIGURE),
        },
    ),
    Row(
        "reloads", "reloads:run", 150, 40,
        {
            "failed": Line("100 reloads under load (short: 10), every tenth of an invalid configuration", "0 failed"),
            "stop": Line("SIGTERM under load: accepted requests", "0 failed"),
            "time": Line("SIGTERM under load: the server has ended", "≤ --exit-timeout-secs", FIGURE),
        },
    ),
    Row(
        "upgrades", "upgrades:run", 600, 100,
        {
            "failed": Line(
                "20 upgrades, 50 SIGHUPs (short: 2, 5) under load over HTTP (lane and road), gRPC and shared memory",
                "0 failed, 0 wrong",
            ),
            "tls": Line("5 upgrades (short: 1) under load over HTTPS (lane and road) and gRPC with TLS", "0 failed"),
            "back": Line(
                "new versions that end, hang or are killed at their start, under load",
                "the old one goes on, 0 failed",
            ),
            "time": Line("an upgrade of a server with one small model", "≤ 10 s", FIGURE),
        },
    ),
    Row(
        "systemd", "systemd:run", 30, 30,
        {
            "cpu": Line("systemd-analyze security of the unit, with `--clients`", "≤ 1.1", FIGURE),
            "gpu": Line("systemd-analyze security of the unit with GPUs, with `--clients`", "≤ 1.3", FIGURE),
        },
    ),
    Row(
        "service", "service:run", 240, 120,
        {
            "start": Line("the unit under a live systemd, in its sandbox", "active, and ready at once", FIGURE),
            "upgrade": Line("`systemctl reload` and SIGUSR2 under load: the main process changes", "0 failed", FIGURE),
            "restart": Line("`systemctl restart` under load, with shoal.socket", "0 failed", FIGURE),
            "again": Line("the main process is killed, and stands still: systemd starts it again", "each time", FIGURE),
            "stop": Line("`systemctl stop`", "success, and nothing left", FIGURE),
        },
    ),
)  # fmt: skip
