# Sourced by scripts/quickstart: a Postdate that is built already, between a Redis and a RabbitMQ of its own.
# shellcheck shell=bash

# Latest that a message may arrive after its due time.
LATENESS_LIMIT_MS=2000

# Servers that are missing, from Debian.
install_servers() {
    local missing=() as_root=()
    have redis-server || missing+=(redis-server)
    compgen -G '/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server' >/dev/null || missing+=(rabbitmq-server)
    ((${#missing[@]})) || return 0
    have apt-get || die "missing here: ${missing[*]}; this script installs on Debian only, please install them yourself"
    ((EUID == 0)) || as_root=(sudo)
    quietly "installing ${missing[*]}" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c \
        'apt-get -q update && apt-get -q install --yes --no-install-recommends "$@"' sh "${missing[@]}"
}

# free_port: one of this machine that nobody listens on.
free_port() {
    local port
    while port=$((20000 + RANDOM % 12000)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    printf '%s\n' "$port"
}

# child PROGRAM: notes the process that was started last; its output is in $work/PROGRAM.log.
child() {
    children+=("$!")
    programs+=("$1")
}

# dies if a process that was started has ended, with the end of its output.
all_run() {
    local index
    for index in "${!children[@]}"; do
        kill -0 "${children[index]}" 2>/dev/null ||
            die "${programs[index]} has ended by itself: $(tail -n 5 "$work/${programs[index]}.log")"
    done
}

# until_true SECONDS TEXT COMMAND...: repeats the command until it succeeds; dies after so many seconds, or at once if a
# process that was started has ended.
until_true() {
    local end=$((SECONDS + $1)) text=$2 said
    shift 2
    until said=$("$@" 2>&1); do
        all_run
        ((SECONDS < end)) || die "$text did not happen in time: $said"
        sleep 0.1
    done
}

start_redis() {
    redis_port=$(free_port)
    redis-server --port "$redis_port" --bind 127.0.0.1 --dir "$work" --appendonly yes --maxmemory 256mb \
        --maxmemory-policy noeviction >"$work/redis.log" 2>&1 </dev/null &
    child redis
}

# The server itself: the program in the path changes to another user.
start_rabbitmq() {
    local home=$work/rabbitmq
    rabbitmq_port=$(free_port)
    mkdir -p "$home"
    cat >"$home/definitions.json" <<JSON
{
  "users": [{ "name": "guest", "password": "guest", "tags": ["administrator"] }],
  "vhosts": [{ "name": "/" }],
  "permissions": [{ "user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*" }],
  "queues": [
    { "name": "mail.delayed", "vhost": "/", "durable": true, "auto_delete": false, "arguments": { "x-queue-type": "quorum", "x-delivery-limit": 1000000 } },
    { "name": "mail", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} }
  ]
}
JSON
    printf '%s\n' "listeners.tcp.1 = 127.0.0.1:$rabbitmq_port" "load_definitions = $home/definitions.json" >"$home/rabbitmq.conf"
    echo '[].' >"$home/enabled_plugins"
    rabbitmq_environment=(
        HOME="$home" RABBITMQ_NODENAME="quickstart$rabbitmq_port@localhost" RABBITMQ_CONFIG_FILE="$home/rabbitmq.conf"
        RABBITMQ_DIST_PORT="$(free_port)" ERL_EPMD_PORT="$(free_port)" ERL_EPMD_ADDRESS=127.0.0.1
        RABBITMQ_MNESIA_BASE="$home/mnesia" RABBITMQ_LOG_BASE="$home/log" RABBITMQ_ENABLED_PLUGINS_FILE="$home/enabled_plugins"
        RABBITMQ_PID_FILE="$home/pid" RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 2:2 +sbwt none"
    )
    env "${rabbitmq_environment[@]}" "$(compgen -G '/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server' | sort | sed -n 1p)" \
        >"$work/rabbitmq.log" 2>&1 </dev/null &
    child rabbitmq
}

# Stops what was started, in the reverse order, and waits for it. RabbitMQ leaves its port mapper behind.
stop_all() {
    local index
    for ((index = ${#children[@]} - 1; index >= 0; index--)); do
        kill "${children[index]}" 2>/dev/null || true
        wait "${children[index]}" 2>/dev/null || true
    done
    if ((${#rabbitmq_environment[@]})) && have epmd; then
        env "${rabbitmq_environment[@]}" epmd -kill >/dev/null 2>&1 || true
    fi
    rm -rf "$work"
}

# arrive DELAY: a message that is sent, followed, and judged by what the command says of it.
arrive() {
    local said late
    said=$("$binary" send --route mail --delay "$1" --body "hello after $1" --wait)
    printf '  x-delay: %-6s %s\n' "$1" "${said##*$'\n'}"
    # An early one would have a minus, and not match.
    late=$(sed -nE 's/.*, ([0-9]+)\.[0-9]+ ms late.*/\1/p' <<<"$said")
    [[ -n $late ]] || die "it does not say how late it was: $said"
    ((late <= LATENESS_LIMIT_MS)) || die "it was later than $LATENESS_LIMIT_MS ms"
}

# run_binary FILE ONCE
run_binary() {
    local binary=$1 once=$2 admin_port delay
    install_servers
    work=$(mktemp -d)
    children=()
    programs=()
    rabbitmq_environment=()
    trap stop_all EXIT
    trap 'exit 130' INT TERM
    say "starting Redis and RabbitMQ on free ports"
    start_redis
    start_rabbitmq
    admin_port=$(free_port)
    cat >"$work/postdate.toml" <<TOML
[redis]
url = "redis://127.0.0.1:$redis_port"

[rabbitmq.main]
url = "amqp://guest:guest@127.0.0.1:$rabbitmq_port/%2f"

[admin]
listen = "127.0.0.1:$admin_port"

# What is published to the queue mail.delayed is in the queue mail when it is due.
[routes.mail]
from = { rabbitmq = "main", queue = "mail.delayed" }
to   = { rabbitmq = "main", exchange = "", routing_key = "mail" }
TOML
    export POSTDATE_URL=http://127.0.0.1:$admin_port
    until_true 60 "the start of Redis and RabbitMQ" "$binary" check --connect --config "$work/postdate.toml"
    "$binary" run --config "$work/postdate.toml" >"$work/postdate.log" 2>&1 </dev/null &
    child postdate
    until_true 20 "the start of Postdate" "$binary" status
    say "Postdate is ready: $POSTDATE_URL/"
    sed 's/^./    &/' "$work/postdate.toml"
    printf '\nMessages, from the queue mail.delayed to the queue mail:\n'
    for delay in 500ms 2s 0; do arrive "$delay"; done
    if ! $once; then
        printf '\nEverything keeps running. In another terminal, try:\n\n  export POSTDATE_URL=%s\n' "$POSTDATE_URL"
        printf '  %s %s\n' "$binary" "send --route mail --delay 1h --id order-7 --body hello" "$binary" "cancel order-7" "$binary" top
        printf '\nThe console is at %s/. Ctrl-C stops Postdate, the servers, and removes their data.\n' "$POSTDATE_URL"
        wait "${children[-1]}" || die "Postdate has ended by itself: $(tail -n 3 "$work/postdate.log")"
    fi
}
