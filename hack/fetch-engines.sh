#!/usr/bin/env bash
# Brings the real engines that tests, benchmarks and `kanjo dev` run on, at pinned versions:
#
#   Apache Kafka   its published jars, by mvn        -> $KANJO_ENGINES_DIR/kafka-<version>
#   ClickHouse     libchdb, by npm                   -> $KANJO_ENGINES_DIR/chdb-<version>
#   Redis 7, PostgreSQL 15, Java 17                  -> Debian's packages, by apt-get, when they are missing
#
# Says nothing it need not, changes nothing that is already right, and may run twice at once. Every file is checked
# against a recorded SHA-256 before it is put in place; --verify checks what is in place once more.
set -euo pipefail

KAFKA_VERSION=4.3.1
CHDB_VERSION=26.7.3
CHDB_NPM=@chdb/lib-linux-x64-gnu@26.7.3-stable.1
CHDB_SHA256=36ad4e999882821ef13cf2d0f52c93f48e6ee1b4498b35a201c23ce4b8d15bf5
POSTGRES_MAJOR=15

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${KANJO_ENGINES_DIR:-$HOME/.cache/kanjo/engines}
kafka=$dir/kafka-$KAFKA_VERSION
chdb=$dir/chdb-$CHDB_VERSION

say() { printf 'engines: %s\n' "$*"; }
die() { printf 'engines: %s\n' "$*" >&2; exit 1; }

case "${1:-}" in
  "") verify=false ;;
  --verify) verify=true ;;
  *) die "usage: hack/fetch-engines.sh [--verify]" ;;
esac
[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || die "only Linux on x86_64 is served; use docker-compose.yml on $(uname -s)/$(uname -m)"

mkdir -p "$dir"
# One fetch at a time: the second waits, then finds everything in place.
exec 9>"$dir/.lock"
flock 9

# A directory is filled under another name and renamed, so a fetch cut short leaves nothing that looks whole.
fresh() { rm -rf "$1.part" && mkdir -p "$1.part"; }
place() { rm -rf "$1" && mv "$1.part" "$1"; }

# --- Debian's packages -------------------------------------------------------------------------------------------

packages=()
command -v redis-server >/dev/null || packages+=(redis-server)
[ -x "/usr/lib/postgresql/$POSTGRES_MAJOR/bin/initdb" ] || packages+=("postgresql-$POSTGRES_MAJOR")
command -v java >/dev/null || packages+=(openjdk-17-jre-headless)
[ -d "$kafka" ] || command -v mvn >/dev/null || packages+=(maven)
[ -d "$chdb" ] || command -v npm >/dev/null || packages+=(npm)
if [ ${#packages[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "missing: ${packages[*]}. Install them with your package manager"
  [ "$(id -u)" = 0 ] || die "missing: ${packages[*]}. Run: sudo apt-get install --no-install-recommends ${packages[*]}"
  say "installing ${packages[*]}"
  # The packages would start services of their own; ours run on their own ports with their own data.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || die "apt-get update failed"
  apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null || die "apt-get install ${packages[*]} failed"
fi

redis=$(redis-server --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
[ "${redis:-0}" -ge 7 ] || die "redis-server is version ${redis:-unknown}, 7 or newer is needed"
java=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
[ "${java:-0}" -ge 17 ] || die "java is version ${java:-unknown}, 17 or newer is needed (openjdk-17-jre-headless)"

# --- ClickHouse --------------------------------------------------------------------------------------------------

chdb_whole() { (cd "$1" && printf '%s  libchdb.so\n' "$CHDB_SHA256" | sha256sum --status -c - 2>/dev/null); }
if $verify && [ -d "$chdb" ] && ! chdb_whole "$chdb"; then
  say "libchdb.so in $chdb is damaged, fetching it again"
  rm -rf "$chdb"
fi
if [ ! -d "$chdb" ]; then
  say "fetching ClickHouse (libchdb $CHDB_VERSION, 180 MB)"
  fresh "$chdb"
  (cd "$chdb.part" && npm pack --silent "$CHDB_NPM" >/dev/null) || die "npm pack $CHDB_NPM failed"
  tar -xzf "$chdb.part"/*.tgz -C "$chdb.part" --strip-components=1 --no-same-owner package/libchdb.so
  rm -f "$chdb.part"/*.tgz
  chdb_whole "$chdb.part" || die "libchdb.so of $CHDB_NPM does not have the recorded SHA-256"
  place "$chdb"
fi

# --- Kafka -------------------------------------------------------------------------------------------------------

broker_properties() { # client port, controller port, data directory
  printf '%s\n' process.roles=broker,controller node.id=1 "controller.quorum.voters=1@127.0.0.1:$2" \
    "listeners=BROKER://127.0.0.1:$1,CONTROLLER://127.0.0.1:$2" inter.broker.listener.name=BROKER \
    listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT controller.listener.names=CONTROLLER \
    offsets.topic.replication.factor=1 "log.dirs=$3"
}
kafka_whole() {
  [ "$(ls "$1/libs" | wc -l)" = "$(wc -l <"$here/kafka/SHA256SUMS")" ] &&
    (cd "$1/libs" && sha256sum --status -c "$here/kafka/SHA256SUMS" 2>/dev/null)
}
if $verify && [ -d "$kafka" ] && ! kafka_whole "$kafka"; then
  say "the jars in $kafka are damaged, fetching them again"
  rm -rf "$kafka"
fi
if [ ! -d "$kafka" ]; then
  say "fetching Kafka $KAFKA_VERSION (92 jars, 54 MB)"
  fresh "$kafka"
  mvn -q -B --strict-checksums -f "$here/kafka/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$kafka.part/libs" >"$kafka.part/mvn.log" 2>&1 ||
    { cat "$kafka.part/mvn.log" >&2; die "mvn dependency:copy-dependencies failed"; }
  rm "$kafka.part/mvn.log"
  kafka_whole "$kafka.part" || die "Kafka's jars do not have the recorded SHA-256 (hack/kafka/SHA256SUMS)"
  # A formatted, empty data directory: a broker that starts on a copy saves the second JVM that formatting costs.
  broker_properties 9092 9093 "$kafka.part/formatted" >"$kafka.part/format.properties"
  mkdir "$kafka.part/formatted"
  java -cp "$kafka.part/libs/*" kafka.tools.StorageTool format \
    -t a2Fuam8tZW5naW5lLWthZg -c "$kafka.part/format.properties" >/dev/null 2>"$kafka.part/format.log" ||
    { cat "$kafka.part/format.log" >&2; die "formatting Kafka's data directory failed"; }
  rm "$kafka.part/format.properties" "$kafka.part/format.log"
  place "$kafka"
fi

# A class archive halves what a start costs, which is most of what a test with a broker costs. It is made by a broker
# that runs for a moment, from the jars at their final place, and it is only good for this java: without it, or with
# another java, the broker starts all the same.
archive_classes() {
  local tmp port try broker ok=false
  tmp=$(mktemp -d)
  for try in 1 2 3; do
    port=$((20000 + RANDOM % 12000))
    rm -rf "$tmp/log" && cp -r "$kafka/formatted" "$tmp/log"
    broker_properties "$port" "$((port + 1))" "$tmp/log" >"$tmp/server.properties"
    java -Xmx384m -XX:ArchiveClassesAtExit="$tmp/kafka.jsa" -cp "$kafka/libs/*" kafka.Kafka "$tmp/server.properties" \
      >"$tmp/log.txt" 2>&1 9>&- &
    broker=$!
    for _ in $(seq 600); do
      kill -0 "$broker" 2>/dev/null || break
      if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then ok=true; break; fi
      sleep 0.1
    done
    kill "$broker" 2>/dev/null || true
    wait "$broker" || true
    if $ok && [ -s "$tmp/kafka.jsa" ]; then break; fi
  done
  if $ok && [ -s "$tmp/kafka.jsa" ]; then
    mv "$tmp/kafka.jsa" "$kafka/kafka.jsa.part" && mv "$kafka/kafka.jsa.part" "$kafka/kafka.jsa"
  else
    say "no class archive could be made, brokers will start more slowly:" && tail -n 5 "$tmp/log.txt"
  fi
  rm -rf "$tmp"
}
if [ ! -e "$kafka/kafka.jsa" ]; then
  say "making Kafka's class archive"
  archive_classes
fi

say "ready in $dir"
